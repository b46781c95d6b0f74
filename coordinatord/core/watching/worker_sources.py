"""Finds the nodes to ask about workers of a round, and assigns the answers to the workers.

All questions to workers are divided among nodes here: those of looks, which find hangs; those of people who use
`nodeclient stacks`; and those about arrivals in collectives.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

from msgspec import Struct

from coordinatord.core.rounds.effects import WorkerSource
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.ranks import Ranks
from coordinatord.hints.seen_worker import SeenWorker
from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.messages import Launcher
from coordinatord.protocol.stack_messages import WORKERS_ASKED_MAX, WorkerStacks

WORKERS_AT_ONCE_MAX = 16_384
"""The limit of workers in one look. Each answer may have a kilobyte, so 16 MB pass through the coordinator for them."""


class NoStacksError(OperationalError):
    """The job has no workers to ask, or none with these ranks, or more than `WORKERS_AT_ONCE_MAX`."""


class SourceStacks(Struct, frozen=True):
    """The stacks of the workers of one source."""

    source: WorkerSource
    workers: tuple[WorkerStacks, ...] = ()
    problem: str = ""
    """Why there are none; empty if there are."""


def merge_ranges(chosen: Iterable[range]) -> list[range]:
    """Merge ranges of ranks that overlap or touch; return them in order."""
    merged: list[range] = []
    for piece in sorted(chosen, key=lambda piece: piece.start):
        if merged and piece.start <= merged[-1].stop:
            merged[-1] = range(merged[-1].start, max(merged[-1].stop, piece.stop))
        else:
            merged.append(piece)
    return merged


def select_ranks(ranks: Ranks, wanted: Sequence[range]) -> list[range]:
    """Return which of the `wanted` ranks (merged ranges) a node has; all of its ranks if `wanted` is empty."""
    first, end = ranks.first_rank, ranks.first_rank + ranks.workers
    if not wanted:
        return [range(first, end)]
    # The last range that begins at or before the node's first rank, and all later ones.
    near = wanted[max(0, bisect(wanted, first, key=lambda piece: piece.start) - 1) :]
    overlapping = takewhile(lambda piece: piece.start < end, near)
    return [range(max(first, piece.start), min(end, piece.stop)) for piece in overlapping if piece.stop > first]


def worker_sources(run: Run, ranks: Sequence[range] = ()) -> tuple[WorkerSource, ...]:
    """Return the nodes that have these ranks of the present round; all of its nodes if there are no `ranks`.

    A node that cannot be asked is among them, with a `problem` and no session. Raises `NoStacksError`.
    """
    if not run.durable.order:
        raise NoStacksError(f"job {run.job} has no workers now: its state is {run.durable.state}")
    chosen = merge_ranges(ranks)
    sources = tuple(
        source
        for own in run.durable.order.values()
        for piece in select_ranks(own, chosen)
        for source in _sources_of(run, own, piece)
    )
    workers = sum(len(source.ranks) for source in sources)
    if not workers:
        world_size = sum(own.workers for own in run.durable.order.values())
        raise NoStacksError(f"round {run.durable.round} has no such rank: it has ranks 0 to {world_size - 1}")
    if workers > WORKERS_AT_ONCE_MAX:
        raise NoStacksError(f"these are {workers} workers: choose at most {WORKERS_AT_ONCE_MAX} by rank")
    return sources


def _sources_of(run: Run, own: Ranks, ranks: range) -> Iterator[WorkerSource]:
    """Yield these workers of one node, as many at a time as one question may name."""
    member = run.members.get(own.node)
    problem = ""
    if run.spec.launcher is Launcher.TORCHRUN:
        problem = "torchrun has started its workers, so it cannot ask them"
    elif member is None or member.session.id is None:
        problem = "it is not connected"
    for begin in range(0, len(ranks), WORKERS_ASKED_MAX):
        yield WorkerSource(
            node=own.node,
            host=own.node if member is None else member.offer.host,  # of a node that is gone, only the id is known
            first_rank=own.first_rank,
            ranks=tuple(ranks[begin : begin + WORKERS_ASKED_MAX]),
            session=None if member is None or problem else member.session.id,
            problem=problem,
        )


def seen_workers(answers: Iterable[SourceStacks]) -> tuple[SeenWorker, ...]:
    """Return the sample of each worker that was asked for; a worker without an answer has an empty one."""
    seen: list[SeenWorker] = []
    for answer in answers:
        answered = {worker.rank: worker for worker in answer.workers}
        seen += [SeenWorker(answer.source.node, rank, answered.get(rank)) for rank in answer.source.ranks]
    return tuple(seen)
