"""What follows for a node when one of its workers fails, or is not in the round any more."""

from __future__ import annotations

from dataclasses import replace

from coordinatord.protocol.messages import Phase
from nodeclient.core import notices
from nodeclient.core.effects import Effect, Hold, Level, Notice
from nodeclient.core.events import CollectiveFailed, Diagnosis, StartFailed, WorkerEnd, WorkerExited, WorkerLeft
from nodeclient.core.staying import Staying
from nodeclient.core.table import Stimulus
from nodeclient.core.worker_group import WorkerGroup


def note_end(
    event: WorkerEnd, group: WorkerGroup, staying: Staying, phase: Phase, workers: int, now: float
) -> tuple[Stimulus | None, list[Effect]]:
    """Note in the group how one of its `workers` ended; return the stimulus for the node, if any, and the effects."""
    at, diagnosis, is_known = now, Diagnosis(), False
    match event:
        case WorkerLeft():
            return _note_left(event, group, staying)
        case StartFailed():
            group.alive.difference_update(range(event.local_rank, workers))
            diagnosis = Diagnosis(message=event.message)
        case WorkerExited():
            at, diagnosis = now - event.age_s, event.diagnosis
            is_known = staying.note_end(event.local_rank, by_itself=group.ended_by_itself(event.exit_code, at))
            if event.local_rank not in group.alive:
                return None, []  # the worker was out of the round
            group.note_exit(event.local_rank, event.exit_code, at)
        case CollectiveFailed():
            if not staying.note_failed(event.local_rank, group.alive):
                return None, []
            at, diagnosis = now - event.age_s, replace(event.diagnosis, left=True)
    if phase is Phase.STOPPING:
        if not is_known:
            group.note_late(event.local_rank, event.exit_code, diagnosis, at)
        return (None if group.alive else Stimulus.DEAD), []
    if event.exit_code != 0:
        group.fail(event.local_rank, event.exit_code, diagnosis, at)
        failure = group.failure(now)
        assert failure is not None  # noqa: S101 - it was just noted
        level = Level.WARNING if failure.left else Level.ERROR
        return Stimulus.FAILED, [Notice(level, notices.failed(failure), "worker_failed")]
    return (None if group.alive else Stimulus.SUCCEEDED), []


def _note_left(event: WorkerLeft, group: WorkerGroup, staying: Staying) -> tuple[Stimulus | None, list[Effect]]:
    if not staying.take(event.local_rank, group.alive):
        return None, []
    group.alive.discard(event.local_rank)
    return (None if group.alive else Stimulus.DEAD), [Hold(event.local_rank)]
