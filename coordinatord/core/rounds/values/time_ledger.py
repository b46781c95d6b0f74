"""Counts where each second of a run went: to exactly one activity, from its first record to its last.

This module has the arithmetic. `transitions/apply` says which activity a record begins. `queries/time_attribution` says
where a time has to be cut in two, because there were enough nodes by then, or the round was broken by then.
`round_history` has the times of single rounds.

Time is counted from the first record of a run, not from any clock's zero, and the times in records are absolute. So a
clock that is set, a coordinator that is away and rounds that are forgotten leave earlier counts as they are.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import asdict, replace

from coordinatord.protocol.schema import Strict

SPAN_MAX = 10**9
"""The limit in seconds: some 30 years, in place of no limit."""
Span = Annotated[float, Meta(ge=0, le=SPAN_MAX)]
"""A span of time in seconds."""


class Activity(StrEnum):
    """What a second of a run's wall time went to."""

    TRAINING = "training"
    """All its workers are started, and they do steps that no round of the run has done before."""
    REDONE = "redone"
    """They do steps again that an earlier round of the run had done, as after a restart from a checkpoint."""
    RUNNING = "running"
    """All its workers are started; whether they train is not known, since no step is reported."""
    STALLED = "stalled"
    """No worker has done a step for much longer than steps have taken recently."""
    SILENT = "silent"
    """No node of the round is heard, so nothing is known of its workers."""
    WAITING = "waiting"
    """No round, and fewer nodes have joined than it needs."""
    RENDEZVOUS = "rendezvous"
    """No round, though enough nodes are ready: more may arrive within the settle window."""
    STARTING = "starting"
    """There is a round, but its workers are not started yet, or have yet to report the first of their steps. Without a
    round, enough nodes have joined, and some of them still import what their workers need."""
    DETECTING = "detecting"
    """The round is broken, and that is not known yet."""
    STOPPING = "stopping"
    """The round's workers end, and save their state."""


class Spent(Strict, frozen=True):
    """Seconds by activity, of a run or of one round."""

    training: Span = 0.0
    redone: Span = 0.0
    running: Span = 0.0
    stalled: Span = 0.0
    silent: Span = 0.0
    waiting: Span = 0.0
    rendezvous: Span = 0.0
    starting: Span = 0.0
    detecting: Span = 0.0
    stopping: Span = 0.0

    @property
    def total(self) -> float:
        """Their sum."""
        return sum(self.by_activity().values())

    @property
    def at_work(self) -> float:
        """The seconds in which all workers of a round were started, and nothing was known to be wrong."""
        return self.training + self.redone + self.running + self.stalled

    def by_activity(self) -> dict[str, float]:
        """Return the seconds by the name of the activity."""
        return asdict(self)

    def plus(self, activity: Activity, seconds: float) -> Spent:
        """Return a copy with so many more seconds for one activity."""
        return replace(self, **{str(activity): min(getattr(self, activity) + seconds, SPAN_MAX)})

    def minus(self, earlier: Spent) -> Spent:
        """Return the difference from an `earlier` value."""
        return Spent(**{name: max(0.0, now - getattr(earlier, name)) for name, now in self.by_activity().items()})


class Ledger(Struct, frozen=True):
    """The seconds of one run: those that are settled, and the time since, which goes to one activity so far."""

    settled_at: float
    """When the last of them ended, in the coordinator's clock."""
    settled: Spent = Spent()
    """Up to the last boundary between two activities."""
    activity: Activity | None = Activity.WAITING
    """What the time since goes to, as far as records show; None once the run is over."""

    def total(self, now: float) -> float:
        """Return all seconds of the run at `now`."""
        return self.settled.total + (0.0 if self.activity is None else max(0.0, now - self.settled_at))

    def split(self, turn: float, before: Activity | None, since: Activity | None, now: float) -> Spent:
        """Return the seconds at `now` if the open time went to `before` up to `turn`, and to `since` from then on."""
        if before is None or since is None:
            return self.settled  # the run is over
        now = max(now, self.settled_at)  # a clock that was set back takes nothing away
        turn = min(max(turn, self.settled_at), now)
        return self.settled.plus(before, turn - self.settled_at).plus(since, now - turn)
