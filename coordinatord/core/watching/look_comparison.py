"""Compares two looks at the workers of a round: only what stands still in both of them is a hang.

One look may meet any training between two of its collectives. So a worker is named only if none has got on from one
look to the next, and all of them could be seen.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from coordinatord.hints.hang_verdict import HangVerdict, find_hang
from coordinatord.hints.seen_worker import TRACED, SeenWorker, outside_of
from coordinatord.protocol.messages import HangKind
from coordinatord.protocol.stack_messages import CollectiveState, StackOrigin, WorkerStacks

APART_S = 1.0
"""The least time between two looks: a training whose collectives take longer has steps of many seconds, and for those
the first look comes late."""

ANSWERED_WITHIN_S = 10.0
"""A look without answers by then is given up: the server waits for the nodes for half of that."""

PAUSE_S = 10.0
"""The pause after two looks that have shown no hang. It doubles each time: a look stops the Python of a worker that
stands still for a twentieth of a second."""

PAUSE_MAX_S = 60.0
"""The longest such pause: what hangs after a long evaluation is named within a minute or so."""

OUTSIDE_PATIENCE_S = 600.0
"""How long a worker may wait for a disk, or for anything else that is no part of the job: while a file of many
gigabytes is flushed, no counter of its process moves. A restart helps little against what is outside the job, and loses
the checkpoint that is only slow."""

_SILENT_STATES = frozenset({"stopped", "ended", ""})
"""States of a process that explain why it does not answer; the empty one means that it is gone."""

NO_COLLECTIVES = (
    "no worker reports a collective, so a hang cannot be seen: "
    "none has come to one yet, or torch has no flight recorder, or it is off"
)

NOBODY_WAITS = "no worker waits in a collective, so none is named: see nodeclient stacks"

UNASKED = "a node cannot be asked where its workers stand"


def why_unseen(look: Sequence[SeenWorker]) -> str:
    """Return why a look cannot be judged; empty if it can.

    A worker of which nothing is known may be training: its script may not import workerlib, or its node not answer. One
    that a debugger holds is not restarted: that would take it from the person who examines it.
    """
    for worker in look:
        if worker.now is None:
            return UNASKED
        if worker.now.state == TRACED:
            return f"a debugger holds rank {worker.rank} on node {worker.node}"
        if worker.now.origin is StackOrigin.NONE and worker.now.state not in _SILENT_STATES:
            problem = worker.now.problem or "it does not answer"
            return f"rank {worker.rank} on node {worker.node} cannot be looked at: {problem}"
    return ""


def why_inconclusive(look: Sequence[SeenWorker]) -> str:
    """Return why these workers, all of which could be seen, show no hang; empty if one waits or gets on."""
    answers = [worker.now for worker in look if worker.now is not None and worker.now.origin is StackOrigin.WORKER]
    places = [answer.collective for answer in answers]
    if places and all(place is None for place in places):
        return NO_COLLECTIVES
    is_at_rest = all(place is None or place.state is CollectiveState.DONE for place in places)
    return NOBODY_WAITS if is_at_rest else ""


def may_hang(look: Sequence[SeenWorker]) -> bool:
    """Whether a second look is worth its cost: a worker waits, and none is seen to get on."""
    return not why_unseen(look) and find_hang(look) is not None


def compare(first: Sequence[SeenWorker], second: Sequence[SeenWorker]) -> HangVerdict | None:
    """Return which workers hold up all others; None if one has got on between two looks, or cannot be seen."""
    if why_unseen(first) or why_unseen(second) or _ranks(first) != _ranks(second):
        return None
    return judge_again(first, second)


def may_be_slow(verdict: HangVerdict, look: Sequence[SeenWorker]) -> bool:
    """Whether what one look shows may only be slow. A second look shows whether data still comes and goes.

    That is so where all workers wait in collectives, which need the network, and where one waits for something else.
    """
    return verdict.kind in {HangKind.NETWORK, HangKind.MISMATCHED} or awaits_outside(verdict, look)


def awaits_outside(verdict: HangVerdict, look: Sequence[SeenWorker]) -> bool:
    """Whether a worker that all others wait for waits for a disk, or for anything else that is no part of the job."""
    named = (worker.now for worker in look if worker.now is not None and worker.rank in verdict.ranks)
    return verdict.kind is HangKind.STUCK and any(map(outside_of, named))


def stands_since(earlier: Sequence[SeenWorker], verdict: HangVerdict, look: Sequence[SeenWorker]) -> bool:
    """Whether the workers of a verdict have stood still since an earlier look."""
    found = compare(earlier, look)
    return found is not None and (found.kind, found.ranks) == (verdict.kind, verdict.ranks)


def judge_again(first: Sequence[SeenWorker], second: Sequence[SeenWorker]) -> HangVerdict | None:
    """Return which workers hold up all others in the later of two looks; None if a worker has got on in between.

    Unlike `compare`, it judges by the workers that could be seen, as one look does: it is for a person who asks.
    """
    before = {worker.rank: worker.now for worker in first}
    both = [replace(worker, before=before.get(worker.rank)) for worker in second]
    if any(worker.before and worker.now and _has_moved(worker.before, worker.now) for worker in both):
        return None
    return find_hang(both)


def _ranks(look: Sequence[SeenWorker]) -> set[int]:
    return {worker.rank for worker in look}


def _has_moved(before: WorkerStacks, now: WorkerStacks) -> bool:
    """Whether a worker has begun or ended a collective since, or is another process."""
    if before.pid != now.pid or before.places != now.places:
        return True
    first, second = before.collective, now.collective
    if first is None or second is None:
        return first is not second
    moves = CollectiveState.MOVES in {first.state, second.state}
    return moves or (first.group, first.number, first.state) != (second.group, second.number, second.state)
