"""The agent's view of its local worker group in one round: who lives, who failed first, how the group is to end."""

from __future__ import annotations

from signal import Signals

from msgspec import structs

from coordinatord.hints.network import lost_connection
from coordinatord.protocol.exit_codes import shell_exit_code
from coordinatord.protocol.fields import (
    CONSEQUENCES_MAX,
    DURATION_S_MAX,
    LAST_LINES_MAX,
    LINE_MAX,
    LOG_MAX,
    MESSAGE_MAX,
    RANKS_MAX,
)
from coordinatord.protocol.kept_state import Halt
from coordinatord.protocol.messages import Assignment, Ended, Failure, Follower, Killed, Phase
from coordinatord.protocol.text import clip, is_same_error
from nodeclient.core.agent_settings import CHECKPOINT_SHARE, HALT_SHARE, PUT_OFF_SHARE
from nodeclient.core.events import Diagnosis, Keeping, KeptSaved
from nodeclient.core.table import Stimulus

_ENDED_BY_US = frozenset({0, 128 + Signals.SIGKILL})
"""Exit codes, as a shell gives them, of workers that were asked to end, besides that of the signal."""


class WorkerGroup:
    """The worker group of one round. Times are in the agent's clock."""

    def __init__(self, assignment: Assignment | None = None, origin: str = "") -> None:
        """Begin without processes; `origin` is why the round was formed."""
        self.assignment = assignment
        self.origin = origin
        self.begun = False
        """Whether its workers are being started, or were."""
        self.alive: set[int] = set()
        """The local ranks of workers that live and are in the round, or are about to."""
        self.pids: tuple[int, ...] = ()
        """The processes of its workers, by local rank, once all are started."""
        self.ending = Phase.STOPPED
        """The phase that its end leads to."""
        self.kill_at: float | None = None
        """The time at which its workers are killed, once they were asked to end."""
        self.cut_off = False
        """Whether its workers end because the coordinator is out of reach: nothing has gone wrong among them."""
        self.killed: Killed | None = None
        self.save_by: float | None = None
        """The time by which its workers have saved what they keep: then they are asked to end. None if they do not."""
        self.put_off = False
        """Whether its workers, when asked to save, went on to a step of their own choice first."""
        self.halt: Halt | None = None
        """The last request to its workers for the step that all workers of the round keep before they end."""
        self._halt_by: float | None = None
        """The time by which they have come to that step; None if they are not on the way to it."""
        self._save_within_s: float | None = None
        """How long its workers may take to save; None while none of them keeps state."""
        self.writes_checkpoints = False
        """Whether its workers write a checkpoint of their own at that step."""
        self._stopped_at: float | None = None
        """The time from which on its workers are to end: what they do later follows from that."""
        self._signalled_at: float | None = None
        """The time at which its workers were asked to end."""
        self.signum: int = Signals.SIGTERM
        """The signal that asks its workers to end."""
        self._may_save = False
        """Whether its workers have time to save their state between that signal and SIGKILL."""
        self._failure: Failure | None = None
        self._failed_at = 0.0
        self._ended: list[tuple[int, float]] = []
        """The ranks of the first workers that exited with 0 without being asked to, and when."""

    def rank(self, local_rank: int) -> int:
        """Return the global rank of a worker.

        It is limited to what a message can hold: a failure is reported even if a coordinator assigned higher ranks.
        """
        return min(local_rank + (self.assignment.first_rank if self.assignment else 0), RANKS_MAX)

    @property
    def living(self) -> tuple[int, ...]:
        """The processes of its workers by local rank, and 0 for one that is gone; empty if none is left."""
        pids = self.pids if self.alive else ()
        return tuple(pid if local_rank in self.alive else 0 for local_rank, pid in enumerate(pids))

    def keep(self, keeping: Keeping) -> None:
        """Note that some of its workers keep state, and how long it may take them to save it."""
        self._save_within_s = keeping.save_within_s
        self.writes_checkpoints = keeping.writes_checkpoints

    def stop(self, now: float, signum: int = Signals.SIGTERM) -> bool:
        """Note that its workers are to end, and by which signal; return whether this is the first time."""
        first = self._stopped_at is None
        if first:
            self._stopped_at, self.signum = now, signum
        return first

    def save(self, now: float, halt: Halt | None = None, grace_s: float = 0.0) -> bool:
        """Let its workers save what they keep before they are asked to end; return whether any of them keeps state.

        With `halt` they first go on to a step that all workers of the round have in common. This and the save may take
        a share of `grace_s`, their time to end.
        """
        self.halt, self._halt_by = None, None
        if self.alive and self._save_within_s is not None and halt is not None:
            share = CHECKPOINT_SHARE if self.writes_checkpoints else HALT_SHARE
            self.halt, self._halt_by = halt, now + share * grace_s
        elif self.alive and self._save_within_s is not None:
            self.save_by = now + self._save_within_s
        return self.saves

    @property
    def halting(self) -> bool:
        """Whether its workers are on their way to a step that all workers of the round keep."""
        return self._halt_by is not None

    @property
    def saves(self) -> bool:
        """Whether its workers save what they keep, or are about to; they are asked to end after that."""
        return self.halting or self.save_by is not None

    def note_answer(self, event: KeptSaved) -> bool:
        """Note the answer to a request to save; return whether the end of the workers waits for it."""
        self.put_off |= event.put_off
        return self.saves

    def stop_saving(self) -> None:
        """Wait no longer for its workers to save."""
        self.save_by = self._halt_by = None

    def expire_halt(self, now: float) -> None:
        """Let the time to come to a common step end now."""
        self._halt_by = now

    def deadlines(self) -> list[tuple[float, Stimulus]]:
        """Return its deadlines, each with the stimulus that is due then."""
        dues = [
            (self._halt_by, Stimulus.HALT_OVER),
            (self.save_by, Stimulus.SAVED),
            (self._save_late_at, Stimulus.PUT_OFF_OVER),
            (self.kill_at, Stimulus.GRACE_OVER),
        ]
        return [(at, stimulus) for at, stimulus in dues if at is not None]

    @property
    def _save_late_at(self) -> float | None:
        """When workers that went on to a step of their own choice are asked once more to save; None if they are not."""
        if not self.put_off or not self.alive or self._signalled_at is None or self.kill_at is None:
            return None
        return self._signalled_at + PUT_OFF_SHARE * (self.kill_at - self._signalled_at)

    def end_within(self, grace_s: float, now: float, signum: int, *, may_save: bool) -> bool:
        """Give its workers this long to end; return whether to send them this signal.

        A later call may shorten their time, never lengthen it.
        """
        self.stop_saving()
        first = self._signalled_at is None
        if first:
            self._signalled_at, self.signum = now, signum
        if first or (self.kill_at is not None and now + grace_s < self.kill_at):
            self.kill_at, self._may_save = now + grace_s, may_save
        return first

    def kill(self) -> Killed | None:
        """Note that its workers' time to end is over; return those that were still to save their state, if any."""
        kill_at, self.kill_at = self.kill_at, None
        if self.alive and self._may_save and kill_at is not None and self._signalled_at is not None:
            ranks = tuple(self.rank(local_rank) for local_rank in sorted(self.alive)[:CONSEQUENCES_MAX])
            self.killed = Killed(ranks, len(self.alive), min(kill_at - self._signalled_at, DURATION_S_MAX))
        return self.killed

    @property
    def save_within_s(self) -> float:
        """How long its workers may take to save, and this node to compute the digests; 0 if none keeps state."""
        return self._save_within_s or 0.0

    def dissolve(self, now: float) -> float:
        """Note that none of its workers lives, so that no deadline is left; return from when on they were to end."""
        self.stop(now)
        self._signalled_at = self._signalled_at or now
        self.kill_at = None
        self.stop_saving()
        return now if self._stopped_at is None else self._stopped_at

    def fail(self, local_rank: int, exit_code: int, diagnosis: Diagnosis, now: float) -> None:
        """Note the first failure; later ones are its consequences."""
        self._failure, self._failed_at = self._failure_of(local_rank, exit_code, diagnosis), now

    def _failure_of(self, local_rank: int, exit_code: int, diagnosis: Diagnosis) -> Failure:
        return Failure(
            rank=self.rank(local_rank),
            local_rank=local_rank,
            exit_code=exit_code,
            pid=diagnosis.pid,
            message=clip(diagnosis.message, MESSAGE_MAX),
            error=clip(diagnosis.error, MESSAGE_MAX),
            last_lines=tuple(clip(line, LINE_MAX) for line in diagnosis.last_lines[-LAST_LINES_MAX:]),
            followers=(),
            age_s=0.0,
            left=diagnosis.left,
            final=diagnosis.final,
            log=diagnosis.log if diagnosis.log.isprintable() and len(diagnosis.log) <= LOG_MAX else "",
        )

    def note_late(self, local_rank: int, exit_code: int, diagnosis: Diagnosis, at: float) -> None:
        """Note that a worker ended at `at`, which becomes known while the workers are being ended.

        Its failure is the first one if it came before the workers were to end. It also is if no signal had asked the
        worker to end, and it lost no connection to a peer, while the failure that is known so far did: that one may be
        its consequence. Otherwise it is a consequence itself.
        """
        first, late = self._failure, self._failure_of(local_rank, exit_code, diagnosis)
        before = exit_code != 0 and self._stopped_at is not None and at < self._stopped_at
        unasked = self._signalled_at is None or at < self._signalled_at
        by_itself = exit_code != 0 and unasked and not lost_connection(late)
        if first is None:
            if before or by_itself:
                self._failure, self._failed_at = late, at
        elif by_itself and lost_connection(first):
            followers = (Follower(first.rank, first.exit_code, left=first.left), *first.followers)[:CONSEQUENCES_MAX]
            self._failure, self._failed_at = structs.replace(late, followers=followers), at
        elif not self._may_be_asked(exit_code) and len(first.followers) < CONSEQUENCES_MAX:
            same = is_same_error(diagnosis.error or diagnosis.message, first.error or first.message)
            follower = Follower(late.rank, exit_code, same, late.left)
            self._failure = structs.replace(first, followers=(*first.followers, follower))

    def _may_be_asked(self, exit_code: int) -> bool:
        """Whether an exit code may be that of a worker which this node asked to end, or killed."""
        return shell_exit_code(exit_code) in _ENDED_BY_US | {128 + self.signum}

    def ended_by_itself(self, exit_code: int, at: float) -> bool:
        """Whether a worker certainly exited at `at` without having been asked to end, or killed, by this node."""
        is_not_killed_yet = self.kill_at is not None
        unasked = self._signalled_at is None or at < self._signalled_at
        return unasked or not self._may_be_asked(exit_code) or (exit_code == -Signals.SIGKILL and is_not_killed_yet)

    def note_exit(self, local_rank: int, exit_code: int, at: float) -> None:
        """Note that a worker exited at `at`.

        One that exits with 0 after it was asked to end is not among those that `ended` returns.
        """
        self.alive.discard(local_rank)
        if self._failure is not None and self._failure.local_rank == local_rank:
            self._failure = structs.replace(self._failure, left=False)  # it did not leave in time
        unasked = self._stopped_at is None or at < self._stopped_at
        if exit_code == 0 and unasked and len(self._ended) < CONSEQUENCES_MAX:
            self._ended.append((self.rank(local_rank), at))

    def ended(self, now: float) -> tuple[Ended, ...]:
        """Return the first workers that exited with 0 without being asked to, with their ages as of now."""
        return tuple(Ended(rank, min(max(now - at, 0.0), DURATION_S_MAX)) for rank, at in self._ended)

    def failure(self, now: float) -> Failure | None:
        """Return the first failure with its age as of now."""
        if self._failure is None:
            return None
        return structs.replace(self._failure, age_s=min(now - self._failed_at, DURATION_S_MAX))
