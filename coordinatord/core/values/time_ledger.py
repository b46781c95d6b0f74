"""Where each second of a run went: to exactly one activity, from its first record to its last.

Here is the arithmetic. `transitions/apply` says which activity a record begins. `queries/time_attribution` says where a
time has to be cut in two, because there were enough nodes by then, or the round was broken by then. `round_history` has
what the single rounds took.

Time is counted from the first record of a run, not from any clock's zero, and what a record says of it is absolute.
So a clock that is set, a coordinator that is away and rounds that are forgotten leave what was counted as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Annotated

from coordinatord.protocol.schema import Range

SPAN_MAX = 10**9
"""In seconds; 30 years stand for ever."""
Span = Annotated[float, Range(0, SPAN_MAX)]
"""In seconds."""


class Activity(StrEnum):
    """What a second of a run's wall time went to."""

    TRAINING = "training"
    """All its workers are started, and they report their steps."""
    RUNNING = "running"
    """All its workers are started; whether they train is not known, as no step is reported."""
    STALLED = "stalled"
    """No worker has done a step for much longer than steps have taken of late."""
    WAITING = "waiting"
    """No round, and fewer nodes are ready than it needs."""
    RENDEZVOUS = "rendezvous"
    """No round, though enough nodes are ready: more may arrive within the settle window."""
    STARTING = "starting"
    """There is a round, but its workers are not started yet, or have yet to report the first of their steps."""
    DETECTING = "detecting"
    """The round is broken, and that is not known yet."""
    STOPPING = "stopping"
    """The round's workers end, and save what they have."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds by cause, of a run or of one round."""

    training: Span = 0.0
    running: Span = 0.0
    stalled: Span = 0.0
    waiting: Span = 0.0
    rendezvous: Span = 0.0
    starting: Span = 0.0
    detecting: Span = 0.0
    stopping: Span = 0.0

    @property
    def total(self) -> float:
        """All of them."""
        return sum(self.by_cause().values())

    @property
    def at_work(self) -> float:
        """Those in which all workers of a round were started, and nothing was known to be in their way."""
        return self.training + self.running + self.stalled

    def by_cause(self) -> dict[str, float]:
        """Return them as plain data."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def plus(self, cause: Activity, seconds: float) -> Spent:
        """Return what they are with so many more for one cause."""
        return replace(self, **{str(cause): min(getattr(self, cause) + seconds, SPAN_MAX)})

    def minus(self, earlier: Spent) -> Spent:
        """Return what came on top since they were `earlier`."""
        return Spent(**{name: max(0.0, now - getattr(earlier, name)) for name, now in self.by_cause().items()})


class Ledger:
    """The seconds of one run: those that are settled, and the time since, which has one cause so far.

    First what records tell, then what only this life of the daemon knows.
    """

    def __init__(self, opened_at: float) -> None:
        """Begin at `opened_at`, in the coordinator's clock: no node is ready yet."""
        self.settled = Spent()
        """Up to the last boundary between two causes."""
        self.settled_at = opened_at
        """When that was."""
        self.cause: Activity | None = Activity.WAITING
        """Of the time since; None once the run is over."""
        self.entered_at = opened_at
        """When the run came to be in its present state."""
        self.reports_steps = False
        """Its workers have told of their steps."""
        self.stepped = False
        """They have told of one in the current round."""
        self.silent = False
        """It is recorded that no node of the current round can be heard."""
        self.steps_announced = False
        """A worker of the current round has said that it will report its steps; nodes say so again after a restart."""

        self.enough_since: float | None = None
        """Since when there have been enough ready nodes for a round."""
        self.lost_at = math.inf
        """When the first node that the current round has lost was last known to live."""

    @property
    def present(self) -> Activity | None:
        """What the open time goes to, as far as can be told: workers that will report a step have not begun before."""
        return Activity.STARTING if self.cause is Activity.RUNNING and self.steps_announced else self.cause

    def at(self, now: float) -> Spent:
        """Return what it comes to at `now`."""
        return self.split(now, None, now)

    def split(self, turn: float, since: Activity | None, now: float, *, before: Activity | None = None) -> Spent:
        """Return what it comes to at `now` if from `turn` on the open time went to the cause `since`.

        Up to then it went to `before`, or to what it was put down to so far.
        """
        before, since = before or self.present, since or self.present
        if before is None or since is None:
            return self.settled  # the run is over
        now = max(now, self.settled_at)  # a clock that was set back takes nothing away
        turn = min(max(turn, self.settled_at), now)
        return self.settled.plus(before, turn - self.settled_at).plus(since, now - turn)

    def settle(self, spent: Spent, cause: Activity | None, at: float) -> None:
        """Settle what it comes to at `at`, as a record has it; from here on the cause is another, or none."""
        self.settled, self.settled_at, self.cause = spent, at, cause
