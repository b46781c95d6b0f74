"""The workers of this node in one round, as the agent sees them: which of them live, and what the end of one means.

A further round gets a new `WorkerGroup`, so nothing of an old round counts in it.
"""

from __future__ import annotations

from signal import Signals

from msgspec.structs import replace

from coordinatord.protocol.exit_codes import signal_behind
from coordinatord.protocol.messages import Assignment, Phase
from nodeclient.core import notices
from nodeclient.core.effects import Level, Notice
from nodeclient.core.ending import GroupEnding
from nodeclient.core.events import CollectiveFailed, Diagnosis, Keeping, StartFailed, WorkerEnd, WorkerExited
from nodeclient.core.exits import Exits
from nodeclient.core.leftover_stages import Outlived
from nodeclient.core.reuse import Reuse
from nodeclient.core.table import Stimulus


class WorkerGroup:
    """The local worker group of one round. `Agent` sets `begun`, `alive`, `pids` and `keeping`."""

    def __init__(self, run: str = "", number: int = 0, assignment: Assignment | None = None, origin: str = "") -> None:
        """Begin a round of a run without processes; `origin` is why the round was formed.

        Before its first round, a node has a group of round 0, without an assignment.
        """
        self.run, self.round = run, number
        self.assignment = assignment
        self.origin = origin
        self.begun = False
        """Whether the start of its workers has begun."""
        self.alive: set[int] = set()
        """The local ranks of the workers in the round that live or are being started."""
        self.pids: tuple[int, ...] = ()
        """The process ids of its workers by local rank, once all are started."""
        self.keeping: Keeping | None = None
        """How its workers keep state; None while none of them does."""
        self.result = Phase.STOPPED
        """The phase that its end leads to; `FAILED` or `SUCCEEDED` once its workers have."""
        self.ending = GroupEnding()
        self.outlived = Outlived()
        self.exits = Exits(0 if assignment is None else assignment.first_rank, self.ending)

    @property
    def living(self) -> tuple[int, ...]:
        """The process ids of its workers by local rank, with 0 for one that has ended; empty if all have."""
        pids = self.pids if self.alive else ()
        return tuple(pid if local_rank in self.alive else 0 for local_rank, pid in enumerate(pids))

    def on_end(self, event: WorkerEnd, reuse: Reuse, workers: int, now: float) -> tuple[Stimulus | None, list[Notice]]:
        """Record a failure or the end of a worker; return the stimulus for the node, if any, and the notices.

        `workers` is how many workers the node has. While the round ends, further failures are only consequences, and
        the node waits for the last worker.
        """
        at, diagnosis, was_judged = now, Diagnosis(), False
        match event:
            case StartFailed():
                self.alive.difference_update(range(event.local_rank, workers))
                diagnosis = Diagnosis(message=event.message)
            case WorkerExited():
                at, diagnosis = _ended_at(event, now), event.diagnosis
                by_itself = self.exits.ended_by_itself(event.exit_code, at)
                # A collective that failed in it was its failure (`CollectiveFailed`), so its exit is no second one.
                was_judged = reuse.record_end(event.local_rank, by_itself=by_itself)
                if event.local_rank not in self.alive:
                    return None, []  # it was parked, so its end does not concern the round
                self.alive.discard(event.local_rank)
                self.outlived.remove(event.local_rank)
                self.exits.record_exit(event.local_rank, event.exit_code, at)
            case CollectiveFailed():
                if not reuse.record_failure(event.local_rank, self.alive):
                    return None, []
                at, diagnosis = now - event.age_s, replace(event.diagnosis, left=True)
        if not was_judged:  # also in a stop: it may have failed before the signal, or with the error of other workers
            self.exits.judge(event.local_rank, event.exit_code, diagnosis, at)
        failure = self.exits.failure(now)
        if self.ending.stage is not None:
            in_planned_stop = self.ending.planned and failure is None and isinstance(event, WorkerExited)
            has_error = event.exit_code != 0 and signal_behind(event.exit_code) is None
            text = notices.ended_in_stop(self.exits.rank(event.local_rank), event.exit_code)
            told = [Notice(Level.INFO, text, "worker_ended_in_stop")] if in_planned_stop and has_error else []
            return (None if self.alive else Stimulus.DEAD), told
        if failure is not None:
            self.result = Phase.FAILED
            level = Level.WARNING if failure.left else Level.ERROR  # one that left its round lives on
            return Stimulus.FAILED, [Notice(level, notices.failed(failure), "worker_failed")]
        if self.alive:
            return None, []
        self.result = Phase.SUCCEEDED
        return Stimulus.SUCCEEDED, []


def _ended_at(event: WorkerExited, now: float) -> float:
    """Return when a worker ended: once its program was over, since its exit code was certain from then on.

    Its process may take a second longer, and closes its connections meanwhile. So peers may fail, and this node may
    signal all workers, before it has exited. If it was killed, the time of its exit counts: by an earlier time, a kill
    by this node could be taken for a failure before the signal.
    """
    exited_at = now - event.age_s
    return exited_at if event.exit_code == -Signals.SIGKILL else exited_at - event.over_s
