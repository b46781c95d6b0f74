"""Finds the nodes to ask where the workers of a round stand in their code, and assigns the answers to the workers.

Both the looks for hangs and people (`nodeclient stacks`) ask so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from coordinatord.core.rounds.effects import StackSource
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.ranks import Ranks
from coordinatord.core.watching.rank_ranges import merge_ranges, select_ranks
from coordinatord.hints.seen_worker import SeenWorker
from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.messages import Launcher
from coordinatord.protocol.stack_messages import WORKERS_ASKED_MAX, AskStacks, WorkerStacks

WORKERS_AT_ONCE_MAX = 16_384
"""The limit of workers in one look. Each answer may have a kilobyte, so 16 MB pass through the coordinator for them."""


class NoStacksError(OperationalError):
    """The job has no workers to ask, or none with these ranks, or more than `WORKERS_AT_ONCE_MAX`."""


def stack_sources(run: Run, ranks: Sequence[range], *, brief: bool = False) -> tuple[StackSource, ...]:
    """Return the questions to nodes about some ranks of the present round, or about all if there are no `ranks`.

    A `brief` question is only for the main threads. A node that cannot be asked has a source too, with a `problem` and
    no session. Raises `NoStacksError`.
    """
    if not run.durable.order:
        raise NoStacksError(f"job {run.job} has no workers now: its state is {run.durable.state}")
    chosen = merge_ranges(ranks)
    sources = tuple(
        source
        for own in run.durable.order.values()
        for piece in select_ranks(own, chosen)
        for source in _sources_of(run, own, piece, brief=brief)
    )
    workers = sum(len(source.wanted.local_ranks) for source in sources)
    if not workers:
        world_size = sum(own.workers for own in run.durable.order.values())
        raise NoStacksError(f"round {run.durable.round} has no such rank: it has ranks 0 to {world_size - 1}")
    if workers > WORKERS_AT_ONCE_MAX:
        raise NoStacksError(f"these are {workers} workers: choose at most {WORKERS_AT_ONCE_MAX} by rank")
    return sources


def _sources_of(run: Run, own: Ranks, ranks: range, *, brief: bool) -> Iterator[StackSource]:
    local_ranks = range(ranks.start - own.first_rank, ranks.stop - own.first_rank)
    member = run.members.get(own.node)
    problem = ""
    if run.spec.launcher is Launcher.TORCHRUN:
        problem = "torchrun has started its workers, and they are its own"
    elif member is None or member.session.id is None:
        problem = "it is not connected"
    for asked in in_questions(local_ranks):
        yield StackSource(
            node=own.node,
            host=own.node if member is None else member.offer.host,  # of a node that is gone, only the id is known
            first_rank=own.first_rank,
            session=None if member is None or problem else member.session.id,
            wanted=AskStacks(1, run.id, run.durable.round, asked, brief),  # the session numbers it
            problem=problem,
        )


def in_questions(local_ranks: range) -> Iterator[tuple[int, ...]]:
    """Split local ranks of a node into as many as one question may name."""
    for first in range(0, len(local_ranks), WORKERS_ASKED_MAX):
        yield tuple(local_ranks[first : first + WORKERS_ASKED_MAX])


def seen_workers(answers: Iterable[tuple[StackSource, Iterable[WorkerStacks]]]) -> list[SeenWorker]:
    """Return the sample of each worker that was asked for; a worker without an answer has an empty one."""
    seen = []
    for source, workers in answers:
        answered = {worker.rank: worker for worker in workers}
        ranks = (source.first_rank + local_rank for local_rank in source.wanted.local_ranks)
        seen += [SeenWorker(source.node, rank, answered.get(rank)) for rank in ranks]
    return seen
