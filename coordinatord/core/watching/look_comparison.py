"""Compares two looks at the workers of a round, to tell a hang from slow work.

One look may meet any training between two of its collectives. So a worker is a culprit only if no worker has made
progress from one look to the next, and every worker was seen in both.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from coordinatord.hints.hang_verdict import HangVerdict, find_hang
from coordinatord.hints.seen_worker import TRACED, SeenWorker, outside_wait
from coordinatord.protocol.messages import HangKind
from coordinatord.protocol.stack_messages import CollectiveState, StackOrigin, WorkerStacks

APART_S = 1.0
"""The least time between two looks: a training whose collectives take longer has steps of many seconds, and for those
the first look comes late."""

_SILENT_STATES = frozenset({"stopped", "ended", ""})
"""States of a process that explain why it does not answer; the empty one means that it is gone."""

NO_COLLECTIVES = (
    "no worker reports a collective, so a hang cannot be seen: "
    "none has come to one yet, or torch has no flight recorder, or it is off"
)

NOBODY_WAITS = "no worker waits in a collective, so none is named: see nodeclient stacks"

UNASKED = "a node cannot be asked where its workers stand"


def why_unseen(look: Sequence[SeenWorker]) -> str:
    """Return why a look cannot be judged, since one worker was not seen; empty if it can.

    That worker may be training: its script does not import workerlib, or its node does not answer. A worker in a
    debugger is not restarted either, since a person examines it.
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
    """Return why a look at which every worker was seen shows no hang; empty if one waits or makes progress."""
    answers = [worker.now for worker in look if worker.now is not None and worker.now.origin is StackOrigin.WORKER]
    places = [answer.collective for answer in answers]
    if places and all(place is None for place in places):
        return NO_COLLECTIVES
    is_at_rest = all(place is None or place.state is CollectiveState.DONE for place in places)
    return NOBODY_WAITS if is_at_rest else ""


def may_hang(look: Sequence[SeenWorker]) -> bool:
    """Whether a second look is worth its cost: a worker waits, and none is seen to make progress."""
    return not why_unseen(look) and find_hang(look) is not None


def compare(first: Sequence[SeenWorker], second: Sequence[SeenWorker]) -> HangVerdict | None:
    """Return the workers that all others wait for; None if one made progress between two looks, or was not seen."""
    if why_unseen(first) or why_unseen(second) or _ranks(first) != _ranks(second):
        return None
    return judge_again(first, second)


def may_be_slow(verdict: HangVerdict, look: Sequence[SeenWorker]) -> bool:
    """Whether the verdict on one look may be wrong, since work may only be slow: a second look tells.

    It may if all workers wait in collectives, which need the network, or if one waits for something outside the job.
    """
    return verdict.kind in {HangKind.NETWORK, HangKind.MISMATCHED} or awaits_outside(verdict, look)


def awaits_outside(verdict: HangVerdict, look: Sequence[SeenWorker]) -> bool:
    """Whether a culprit waits for a disk, or for anything else outside the job."""
    culprits = (worker.now for worker in look if worker.now is not None and worker.rank in verdict.ranks)
    return verdict.kind is HangKind.STUCK and any(map(outside_wait, culprits))


def stands_since(earlier: Sequence[SeenWorker], verdict: HangVerdict, look: Sequence[SeenWorker]) -> bool:
    """Whether the workers of a verdict have stood still since an earlier look."""
    found = compare(earlier, look)
    return found is not None and (found.kind, found.ranks) == (verdict.kind, verdict.ranks)


def judge_again(first: Sequence[SeenWorker], second: Sequence[SeenWorker]) -> HangVerdict | None:
    """Return the workers that all others wait for in the later of two looks; None if one made progress in between.

    Unlike `compare`, it ignores workers that were not seen: it is for a person who asks.
    """
    before = {worker.rank: worker.now for worker in first}
    both = [replace(worker, before=before.get(worker.rank)) for worker in second]
    if any(worker.before and worker.now and _has_moved(worker.before, worker.now) for worker in both):
        return None
    return find_hang(both)


def _ranks(look: Sequence[SeenWorker]) -> set[int]:
    return {worker.rank for worker in look}


def _has_moved(before: WorkerStacks, now: WorkerStacks) -> bool:
    """Whether a worker has begun or completed a collective since, or is another process."""
    if before.pid != now.pid or before.places != now.places:
        return True
    first, second = before.collective, now.collective
    if first is None or second is None:
        return first is not second
    moves = CollectiveState.MOVES in {first.state, second.state}
    return moves or (first.group, first.number, first.state) != (second.group, second.number, second.state)
