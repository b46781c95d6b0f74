"""The agent of a node: reaches for what the coordinator wants, and says what is.

`Agent.handle` is the only door. `table` says what is done about what; here is how, and what follows from time alone:
heartbeats, the end of the workers' grace, a coordinator out of reach.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coordinatord.wire.exits import ExitCode, describe_exit, shell_exit_code
from coordinatord.wire.messages import Desired, Goal, Observed, Phase, RefusalCode, Result
from nodeclient.core import events
from nodeclient.core.contact import Contact
from nodeclient.core.effects import (
    Effect,
    Exit,
    Kill,
    Level,
    Notice,
    Reconnect,
    Report,
    Start,
    Sweep,
    Terminate,
    Waiting,
)
from nodeclient.core.group import Group
from nodeclient.core.settings import Settings
from nodeclient.core.table import TABLE, Act, Stimulus

AT_ONCE_GRACE_S = 0.5
"""In an unplanned stop, between SIGTERM and SIGKILL: whoever is blocked in a collective will not get out of it."""

LEAVE_WITHIN_S = 5.0
"""A leaving node that hears no decision for so long, one lease, stops its workers by itself."""


class Agent:
    """Decides for one node. Times are in seconds of a clock that never goes back."""

    def __init__(self, settings: Settings, port: int, now: float) -> None:
        """Begin without workers and out of touch; `port` is reserved for the first round."""
        self._settings = settings
        self.phase = Phase.IDLE
        self.run = ""
        self.round = 0
        self._port = port
        self._desired: Desired | None = None

        self._group = Group()
        self._resting_since = now

        self._contact = Contact(now)

        self._leaving: int | None = None
        self._leave_by: float | None = None
        self._last_word: Exit | None = None
        """What to end with, on its own decision, once no worker lives."""
        self._hurry = False
        """Not even a stop on purpose waits for the workers any more."""
        self.exited = False

        self._effects: list[Effect] = []
        self._handlers: dict[type[events.Event], Callable[[Any, float], None]] = {
            events.SessionOpened: self._opened,
            events.SessionClosed: self._closed,
            events.Told: self._told,
            events.Reassured: self._reassured,
            events.TurnedAway: self._turned_away,
            events.WorkersStarted: self._started,
            events.StartFailed: self._start_failed,
            events.WorkerExited: self._worker_exited,
            events.Swept: self._swept,
            events.SweepFailed: self._sweep_failed,
            events.LeaveAsked: self._leave_asked,
            events.Tick: self._ticked,
        }
        self._acts: dict[Act, Callable[[float], object]] = {
            Act.STAY: lambda _: None,
            Act.START: self._start,
            Act.STOP: self._stop,
            Act.FAIL: self._fail,
            Act.SUCCEED: self._succeed,
            Act.KILL: self._kill,
            Act.SWEEP: self._sweep,
            Act.SETTLE: self._settle,
            Act.ADOPT: self._take_round,
            Act.REST: self._take_round,
            Act.LEAVE: self._leave,
        }

    def handle(self, event: events.Event, now: float) -> list[Effect]:
        """Take in one event; return what is to be done, in order."""
        self._effects = []
        if not self.exited:
            self._handlers[type(event)](event, now)
            self._pursue(now)
            self._tell(now)
        return self._effects

    def next_deadline(self) -> float | None:
        """Return when `Tick` is wanted next, or None."""
        dues = [at for at, _ in self._deadlines()]
        return min(dues, default=None)

    def observed(self, now: float, *, beat: bool) -> Observed:
        """Return what is, for the coordinator."""
        # A success is only worth a word once nothing is left of the workers.
        unsaid = self.phase is Phase.STOPPING and self._group.ending is Phase.SUCCEEDED
        return Observed(
            run=self.run,
            round=self.round,
            phase=Phase.RUNNING if unsaid else self.phase,
            port=self._port,
            leaving=self._leaving is not None,
            failure=self._group.failure(now),
            heard_s=self._contact.heard_s(now),
            beat=beat,
        )

    # Events

    def _opened(self, event: events.SessionOpened, now: float) -> None:
        self._contact.open(event.coordinator, self.observed(now, beat=False), now)

    def _closed(self, event: events.SessionClosed, now: float) -> None:
        if self._contact.close(event.reason, now) and self._last_word is None:
            goes_on = "; the workers go on" if self.phase.has_workers else ""
            self._notice(Level.WARNING, f"lost the coordinator: {event.reason}{goes_on}")
        elif self._contact.is_new_trouble(event.reason):
            self._effects.append(Waiting(f"looking for the coordinator: {event.reason}", self._limit_alone()))
        if self._leaving is not None:
            self._abandon(now)

    def _told(self, event: events.Told, now: float) -> None:
        desired = event.desired
        let_in = self._contact.hear(desired, now)
        if let_in:
            self._notice(Level.INFO, f"connected to the coordinator at {self._contact.coordinator}")
        if desired.run == self.run and desired.round < self.round:
            return  # said before something that this node has already heard
        if desired.goal in {Goal.STOP, Goal.EXIT}:
            self._leave_by = None  # the decision that a leaving node waits for
        waiting = desired.goal is Goal.WAIT
        if waiting and (let_in or self._desired is None or self._desired.reason != desired.reason):
            until = None if desired.wait_s is None else now + desired.wait_s
            self._effects.append(Waiting(desired.reason, until))
        self._desired = desired

    def _reassured(self, event: events.Reassured, now: float) -> None:
        self._contact.alive(now)
        reason = event.held.reason
        if self._contact.is_new_trouble(reason):
            self._notice(Level.WARNING, f"the coordinator lives but decides nothing, all stays as it is: {reason}")

    def _turned_away(self, event: events.TurnedAway, now: float) -> None:
        refused = event.refused
        if refused.retry:
            self._closed(events.SessionClosed(refused.message), now)
        else:
            # A successor has begun already where there is one; otherwise the workers may save what they have.
            hurry = refused.code is RefusalCode.SUPERSEDED
            self._end_with(Exit(ExitCode.REFUSED, f"refused by the coordinator: {refused.message}"), now, hurry=hurry)

    def _started(self, _: events.WorkersStarted, now: float) -> None:
        self._step(Stimulus.STARTED, now)

    def _start_failed(self, event: events.StartFailed, now: float) -> None:
        self._group.alive.difference_update(range(event.local_rank, self._settings.workers))
        self._worker_ended(event.local_rank, event.exit_code, event.message, now)

    def _swept(self, event: events.Swept, now: float) -> None:
        self._port = event.port
        self._step(Stimulus.SWEPT, now)

    def _sweep_failed(self, event: events.SweepFailed, now: float) -> None:
        if self._leaving is not None and self._hurry:
            self._exit(Exit(ExitCode.OS_ERROR, event.message))
        else:
            self._notice(Level.ERROR, event.message)
            self._sweep(now)

    def _ticked(self, _: events.Tick, now: float) -> None:
        for due, act in self._deadlines():
            if due <= now and not self.exited:
                act(now)

    def _worker_exited(self, event: events.WorkerExited, now: float) -> None:
        self._group.alive.discard(event.local_rank)
        self._worker_ended(event.local_rank, event.exit_code, "", now)

    def _worker_ended(self, local_rank: int, exit_code: int, message: str, now: float) -> None:
        alive = self._group.alive
        if self.phase is Phase.STOPPING:
            if not alive:
                self._step(Stimulus.DEAD, now)
        elif exit_code != 0:
            self._worker_failed(local_rank, exit_code, message, now)
        elif not alive:
            self._step(Stimulus.SUCCEEDED, now)

    def _worker_failed(self, local_rank: int, exit_code: int, message: str, now: float) -> None:
        self._group.fail(local_rank, exit_code, message, now)
        why = f": {message}" if message else ""
        rank = self._group.rank(local_rank)
        self._notice(Level.ERROR, f"worker of rank {rank} failed: {describe_exit(exit_code)}{why}")
        self._step(Stimulus.FAILED, now)

    # Leaving and giving up

    def _leave_asked(self, event: events.LeaveAsked, now: float) -> None:
        again = self._leaving is not None
        self._leaving = event.signum
        if not again and (self._contact.connected or self.phase.has_workers):
            grace = self._settings.stop_timeout_s
            self._notice(Level.INFO, f"leaving: workers get up to {grace:g} s to save; once more kills them")
        if again or not self._contact.connected:
            self._abandon(now, hurry=again)
        else:
            self._leave_by = now + LEAVE_WITHIN_S

    def _abandon(self, now: float, *, hurry: bool = False) -> None:
        """Leave without the coordinator's word."""
        self._leave_by = None
        signum = self._leaving or 0
        self._end_with(Exit(128 + signum, "left the job", Level.INFO), now, hurry=hurry)

    def _end_with(self, last_word: Exit, now: float, *, hurry: bool) -> None:
        """End the workers, if there are any, and then the program."""
        self._last_word = last_word
        self._hurry |= hurry
        self._step(Stimulus.ABANDONED, now)

    def _give_up(self, now: float) -> None:
        waited = self._settings.join_timeout_s
        text = f"no coordinator reached within {waited:g} s: {self._contact.trouble}; see --coord and --join-timeout"
        code: int = ExitCode.UNAVAILABLE
        failure = self._group.failure(now)
        if failure is not None:
            code = shell_exit_code(failure.exit_code)
            how = describe_exit(failure.exit_code)
            text = f"worker of rank {failure.rank} failed ({how}), which nobody could be told: {text}"
        if self.phase is Phase.SUCCEEDED:
            text = f"all workers of this node succeeded, but whether those of the others did is not known: {text}"
        self._exit(Exit(code, text))

    def _cut_off(self, now: float) -> None:
        grace = self._contact.outage_grace_s
        text = f"out of touch with the coordinator for {grace:g} s: this node may have been replaced, its workers stop"
        again = f"it is looked for, for {self._settings.join_timeout_s:g} s more; when it is back they start again"
        self._notice(Level.ERROR, f"{text}; {again}")
        self._step(Stimulus.ABANDONED, now)

    # Time

    def _deadlines(self) -> list[tuple[float, Callable[[float], None]]]:
        """Return what is due when; derived from the state, so that nothing has to be cancelled."""
        working = self.phase in {Phase.STARTING, Phase.RUNNING}
        dues: list[tuple[float, Callable[[float], None]]] = []
        if self._group.kill_at is not None:
            dues.append((self._group.kill_at, lambda now: self._step(Stimulus.GRACE_OVER, now)))
        if self._leave_by is not None and self.phase is not Phase.STOPPING:
            dues.append((self._leave_by, self._abandon))
        contact = self._contact
        if contact.connected:
            dues.append((contact.heard_at + contact.lease_s, self._doubt))
            dues.append((contact.beat_at, lambda _: None))  # `_tell` sees to it
        elif self.phase is not Phase.STOPPING:
            dues.append((self._limit_alone(), self._cut_off if working else self._give_up))
        return dues

    def _limit_alone(self) -> float:
        """Return until when the node bears it to be without a coordinator."""
        alone_since = self._contact.alone_since
        if self.phase.has_workers:
            return alone_since + self._contact.outage_grace_s
        return max(alone_since, self._resting_since) + self._settings.join_timeout_s

    def _doubt(self, now: float) -> None:
        self._contact.heard_at = now  # the shell answers with `SessionClosed`
        self._effects.append(Reconnect(f"the coordinator has been silent for {self._contact.lease_s:g} s"))

    # The goal

    def _pursue(self, now: float) -> None:
        """Reach for the goal, and again whenever that leads to another phase."""
        while not self.exited:
            if self._last_word is not None and not self.phase.has_workers:
                self._exit(self._last_word)
                return
            if self._desired is None:
                return
            before = self.phase
            self._step(self._goal(self._desired), now)
            if self.phase is before:
                return

    def _goal(self, desired: Desired) -> Stimulus:
        here = (desired.run, desired.round) == (self.run, self.round)
        match desired.goal:
            case Goal.WAIT:
                return Stimulus.WAIT
            case Goal.EXIT:
                return Stimulus.EXIT
            case Goal.RUN:
                return Stimulus.RUN if here else Stimulus.RUN_NEXT
            case Goal.STOP:
                return Stimulus.STOP if here else Stimulus.STOP_NEXT

    def _step(self, stimulus: Stimulus, now: float) -> None:
        before, row = self.phase, TABLE[self.phase, stimulus]
        self._acts[row.act](now)
        if row.phase is not None:
            self.phase = row.phase
        if row.act in {Act.STOP, Act.FAIL} and before is not Phase.STOPPING and not self._group.alive:
            self._step(Stimulus.DEAD, now)  # no worker had been started

    # Acts

    def _start(self, now: float) -> None:
        desired = self._take_round(now)
        assert desired.assignment is not None  # noqa: S101 - `run` carries one, see `wire`
        self._group = Group(desired.assignment, self._settings.workers)
        self._effects.append(Start(desired.run, desired.round, desired.assignment, desired.reason))

    def _stop(self, now: float) -> None:
        """Ask the workers to end; a later call may shorten their grace, never lengthen it."""
        desired, group = self._desired, self._group
        on_purpose = self._last_word is not None or (desired is not None and desired.planned)
        grace = self._settings.stop_timeout_s if on_purpose and not self._hurry else AT_ONCE_GRACE_S
        if not group.asked:
            group.asked = True
            group.kill_at = now + grace
            self._effects.append(Terminate())
            if desired is not None and desired.goal is not Goal.RUN:
                self._notice(Level.INFO, f"stopping the workers of round {self.round}: {desired.reason}")
        elif group.kill_at is not None:
            group.kill_at = min(group.kill_at, now + grace)

    def _fail(self, now: float) -> None:
        self._group.ending = Phase.FAILED
        self._stop(now)

    def _succeed(self, now: float) -> None:
        self._group.ending = Phase.SUCCEEDED
        self._sweep(now)

    def _kill(self, now: float) -> None:
        del now
        self._group.kill_at = None
        self._effects.append(Kill())

    def _sweep(self, now: float) -> None:
        del now
        self._group.asked, self._group.kill_at = True, None
        self._effects.append(Sweep())

    def _settle(self, now: float) -> None:
        self.phase = self._group.ending
        self._resting_since = now
        if self.phase is Phase.SUCCEEDED:
            self._notice(Level.INFO, f"all workers of this node succeeded in round {self.round}")

    def _take_round(self, now: float) -> Desired:
        """Be in the round that the goal speaks of; what was known of an older one is void."""
        del now
        desired = self._desired
        assert desired is not None  # noqa: S101 - goals come from it
        if (desired.run, desired.round) != (self.run, self.round):
            self.run, self.round = desired.run, desired.round
            self._group = Group()
        return desired

    def _leave(self, now: float) -> None:
        del now
        outcome = self._desired.outcome if self._desired else None
        assert outcome is not None  # noqa: S101 - `exit` carries one, see `wire`
        code = outcome.exit_code
        if outcome.result is Result.LEFT and self._leaving is not None:
            code = 128 + self._leaving
        well = outcome.result in {Result.SUCCEEDED, Result.LEFT}
        self._exit(Exit(code, outcome.summary, Level.INFO if well else Level.ERROR))

    def _exit(self, last_word: Exit) -> None:
        self.exited = True
        self._effects.append(last_word)

    def _notice(self, level: Level, text: str) -> None:
        self._effects.append(Notice(level, text))

    def _tell(self, now: float) -> None:
        """Report what has changed; a heartbeat reports in any case."""
        if not self._contact.connected or self.exited:
            return
        observed = self.observed(now, beat=self._contact.beat_at <= now)
        if self._contact.is_news(observed, now):
            self._effects.append(Report(observed))
