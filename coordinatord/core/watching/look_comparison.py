"""Compares two looks at the workers of a round, to tell a hang from slow work.

A look is a sample of every worker at one moment. In a healthy training too, one look may find a worker that computes
while the others wait for it. So a worker is named as a *culprit*, which holds up the others, only if no worker has made
progress from one look to the next, and every worker was seen in both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from coordinatord.hints.hang_sentences import script_position
from coordinatord.hints.hang_verdict import HangVerdict, find_hang
from coordinatord.hints.seen_worker import (
    GONE,
    STOPPED,
    TRACED,
    SeenWorker,
    main_stack,
    makes_group,
    outside_wait,
    state_of,
    waits_unrecorded,
)
from coordinatord.protocol.messages import HangKind
from coordinatord.protocol.stack_messages import CollectiveState, StackOrigin, WorkerStacks

APART_S = 1.0
"""The least seconds between the two looks of a pair: a collective of a healthy training ends in that time. If
collectives take longer, so do steps, and the first look comes only after ten times the slowest step."""

_SILENT_STATES = GONE | {STOPPED}
"""States of a process that explain why it does not answer, so that it counts as seen."""

NO_COLLECTIVES = (
    "no worker reports a collective, so a hang cannot be seen: "
    "none has come to one yet, or they only send and receive, or torch has no flight recorder, or it is off; "
    "see nodeclient stacks"
)

NOBODY_WAITS = "no worker waits in a collective, so none is named: see nodeclient stacks"

MAKES_GROUP = (
    "rank {rank} on node {node} stands in init_process_group after earlier collectives: if the script destroys its "
    "process group and makes another, start it by python -m workerlib.store; see nodeclient stacks"
)

REMEDY_IF_STOPPED = "`kill -CONT {pid}` on its host lets it go on"

UNASKED = "a node cannot be asked where its workers stand"


def why_unseen(look: Sequence[SeenWorker]) -> str:
    """Return why a look cannot be judged; empty if it can, since every worker was seen.

    A worker that was not seen may be training: its node does not answer, or nothing in its script answers looks. A
    worker in a debugger forbids a judgement too, since a restart would take it from the person who examines it.
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
    """Return why a look in which every worker was seen cannot show a hang; empty if it can, or if some have ended.

    It cannot if all are stopped, or none is in a collective. Workers that make a process group wait for each other
    without one, so a worker that does so is named. If some have ended, the job's state names those that have not.
    """
    if any(worker.now is not None and worker.now.state in GONE for worker in look):
        return ""
    if stopped := all_stopped(look):
        pid = look[0].now.pid if look[0].now else 0
        return f"{stopped}: {REMEDY_IF_STOPPED.format(pid=pid)}"
    answers = [worker.now for worker in look if worker.now is not None and worker.now.origin is StackOrigin.WORKER]
    places = [answer.collective for answer in answers]
    if places and all(place is None for place in places):
        return NO_COLLECTIVES
    if not all(place is None or place.state is CollectiveState.DONE for place in places):
        return ""
    positions = ((worker, script_position(worker.now)) for worker in look if worker.now is not None)
    making = next((worker for worker, position in positions if position.startswith("init_process_group ")), None)
    return NOBODY_WAITS if making is None else MAKES_GROUP.format(rank=making.rank, node=making.node)


def all_stopped(look: Sequence[SeenWorker]) -> str:
    """Say that a signal has stopped all workers, since somebody may want the whole job to stand still; else empty."""
    if not look or any(worker.now is None or worker.now.state != STOPPED for worker in look):
        return ""
    rank = f"rank {look[0].rank} on node {look[0].node}"
    which = f"{rank} has" if len(look) == 1 else f"all {len(look)} workers, such as {rank}, have"
    return f"{which} been stopped by a signal"


def compare(first: Sequence[SeenWorker], second: Sequence[SeenWorker]) -> HangVerdict | None:
    """Return the workers that all others wait for; None if any worker made progress in between, or was not seen."""
    if why_unseen(first) or why_unseen(second) or _ranks(first) != _ranks(second):
        return None
    return judge_pair(first, second)


def may_be_slow(verdict: HangVerdict, look: Sequence[SeenWorker]) -> bool:
    """Whether the verdict on one look may be wrong, so that a person who asks gets a second look too.

    The work may merely be slow if all workers wait in collectives, which need the network, or if a culprit waits for
    something outside the job. The verdict may also be wrong if only stacks show that workers wait: they may get on.
    """
    needs_network = verdict.kind in {HangKind.NETWORK, HangKind.MISMATCHED}
    return needs_network or awaits_outside(verdict, look) or rests_on_stacks(verdict, look)


def rests_on_stacks(verdict: HangVerdict, look: Sequence[SeenWorker]) -> bool:
    """Whether waits are known only from stacks, and one of them may be in a collective.

    That collective may complete between two looks, and another one begin whose stack is the same. A process group is
    made only once, so two looks at that show the same wait.
    """
    is_recorded = any(state_of(worker) is CollectiveState.WAITS for worker in look)
    unrecorded = [worker.now for worker in look if worker.now is not None and waits_unrecorded(worker.now)]
    return verdict.waiting > 0 and not is_recorded and not all(map(makes_group, unrecorded))


def awaits_outside(verdict: HangVerdict, look: Sequence[SeenWorker]) -> bool:
    """Whether a culprit waits for a disk, or for anything else outside the job."""
    culprits = (worker.now for worker in look if worker.now is not None and worker.rank in verdict.ranks)
    return verdict.kind is HangKind.STUCK and any(map(outside_wait, culprits))


def has_recorders(look: Sequence[SeenWorker]) -> bool:
    """Whether a flight recorder shows a collective of any worker, so that it would show others too."""
    return any(worker.now is not None and worker.now.collective is not None for worker in look)


def judge_pair(
    first: Sequence[SeenWorker],
    second: Sequence[SeenWorker],
    judge: Callable[[Sequence[SeenWorker]], HangVerdict | None] = find_hang,
) -> HangVerdict | None:
    """Return the verdict on the second of two looks; None if a worker has come to another collective in between.

    Unlike `compare`, it ignores workers that were not seen.
    """
    before = {worker.rank: worker.now for worker in first}
    both = [replace(worker, before=before.get(worker.rank)) for worker in second]
    if any(worker.before and worker.now and _has_moved(worker.before, worker.now) for worker in both):
        return None
    return judge(both)


def _ranks(look: Sequence[SeenWorker]) -> set[int]:
    return {worker.rank for worker in look}


def _has_moved(before: WorkerStacks, now: WorkerStacks) -> bool:
    """Whether a worker has begun or completed a collective between two samples, or is another process.

    If no recorder shows its wait, another stack shows that it has moved.
    """
    if before.pid != now.pid or before.places != now.places:
        return True
    if main_stack(before) != main_stack(now) and (waits_unrecorded(before) or waits_unrecorded(now)):
        return True
    first, second = before.collective, now.collective
    if first is None or second is None:
        return first is not second
    moves = CollectiveState.MOVES in {first.state, second.state}
    return moves or (first.group, first.number, first.state) != (second.group, second.number, second.state)
