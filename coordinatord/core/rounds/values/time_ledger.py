"""Counts the seconds of a run by activity: each second, from the first record to the last, goes to exactly one.

So a user sees which share of the time was training, and where the rest went. This module has the arithmetic.
`transitions/apply` says which activity a record begins, and `queries/time_attribution` where the time between two
records has to be split. `round_history` has the times of single rounds.

Time is counted from the first record of a run, and records carry the sums so far. So earlier counts do not change when
a clock is set, the coordinator is away, or old rounds are deleted.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import asdict, replace

from coordinatord.protocol.schema import Strict

SPAN_MAX = 10**9
"""The most seconds of a span: some 30 years, since every number has a limit."""
Span = Annotated[float, Meta(ge=0, le=SPAN_MAX)]
"""A span of time in seconds."""


class Activity(StrEnum):
    """An activity, to which a second of a run's wall time went."""

    TRAINING = "training"
    """All workers are started, and do steps that no earlier round of the run has done."""
    REDONE = "redone"
    """All workers are started, and do steps again that an earlier round has done and that were lost with it."""
    RUNNING = "running"
    """All workers are started; whether they train is not known, since no step is reported."""
    STALLED = "stalled"
    """No worker has done a step for much longer than steps have taken recently."""
    SILENT = "silent"
    """No node of the round is heard, so nothing is known of its workers."""
    WAITING = "waiting"
    """There is no round, and fewer nodes have joined than it needs."""
    RENDEZVOUS = "rendezvous"
    """There is no round, though enough nodes are ready: more may arrive within the settle window."""
    STARTING = "starting"
    """The workers of the round are not all started, or have not done their first step. Without a round, enough nodes
    have joined, and some of them still prepare."""
    DETECTING = "detecting"
    """The round is broken, but the coordinator does not know that yet."""
    STOPPING = "stopping"
    """The workers of the round save their state and end."""


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
        """The seconds of all activities."""
        return sum(self.by_activity().values())

    @property
    def at_work(self) -> float:
        """The seconds in which all workers of a round were started, whether they trained or had stalled."""
        return self.training + self.redone + self.running + self.stalled

    def by_activity(self) -> dict[str, float]:
        """Return the seconds by the name of the activity."""
        return asdict(self)

    def plus(self, activity: Activity, seconds: float) -> Spent:
        """Return a copy with `seconds` more for one activity."""
        return replace(self, **{str(activity): min(getattr(self, activity) + seconds, SPAN_MAX)})

    def minus(self, earlier: Spent) -> Spent:
        """Return the difference from an `earlier` value."""
        return Spent(**{name: max(0.0, now - getattr(earlier, name)) for name, now in self.by_activity().items()})


class Ledger(Struct, frozen=True):
    """The account of a run: the settled seconds, and the activity of the open time since then."""

    settled_at: float
    """When the open time began, in the coordinator's clock."""
    settled: Spent = Spent()
    """The seconds before that."""
    activity: Activity | None = Activity.WAITING
    """The activity of the open time, as far as records show; None once the run is over."""

    def total(self, now: float) -> float:
        """Return all seconds of the run at `now`."""
        return self.settled.total + (0.0 if self.activity is None else max(0.0, now - self.settled_at))

    def divide(self, now: float, *spans: tuple[Activity | None, float]) -> Spent:
        """Return the seconds up to `now`, with the open time divided into `spans`: activities, and when each ended.

        A record is made when a change becomes known, which is later than the change itself. So the open time may have
        several spans, in order. A span that ends before the open time has no seconds. None stands for a run that is
        over, which spends no more.
        """
        spent, at = self.settled, self.settled_at
        now = max(now, at)  # a clock that was set back takes nothing away
        for activity, ends_at in spans:
            if activity is None:
                break
            until = min(max(ends_at, at), now)
            spent, at = spent.plus(activity, until - at), until
        return spent
