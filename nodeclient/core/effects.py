"""What the agent of a node wants done."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from coordinatord.protocol.messages import Assignment, Observed, Report


class Level(StrEnum):
    """How much a notice matters to a person."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Probe:
    """Find out whether the master of a round can be reached; answered by `Reached` or `Unreached`."""

    run: str
    round: int
    assignment: Assignment
    patience_s: float
    """For how long to try."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start the workers of a round; answered by `WorkersStarted` or `StartFailed`."""

    run: str
    round: int
    assignment: Assignment
    reason: str
    """Why this round was formed."""


@dataclass(frozen=True, slots=True)
class Terminate:
    """Ask all workers to end."""

    signum: int
    """The signal that this node got, if it leaves for one; SIGTERM otherwise."""


@dataclass(frozen=True, slots=True)
class Kill:
    """End all workers, with SIGKILL."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """End whatever the workers left behind, then reserve a port; answered by `Swept`."""


@dataclass(frozen=True, slots=True)
class SendObserved:
    """Send this to the coordinator if it can be reached; the next word makes up for a lost one."""

    observed: Observed


@dataclass(frozen=True, slots=True)
class Reconnect:
    """Give the session up and look for the coordinator anew."""

    reason: str


@dataclass(frozen=True, slots=True)
class Notice:
    """Tell the person, once."""

    level: Level
    text: str
    event: str
    """What has happened, for machines: the same whatever the words."""


@dataclass(frozen=True, slots=True)
class Show:
    """Show the person why a round failed."""

    report: Report


@dataclass(frozen=True, slots=True)
class Waiting:
    """Show the person what the node waits for, and until when at most, in the agent's clock."""

    reason: str
    until: float | None
    working: bool = False
    """The workers go on meanwhile; they are stopped then."""


@dataclass(frozen=True, slots=True)
class Exit:
    """End the program."""

    code: int
    message: str
    level: Level = Level.ERROR
    report: Report | None = None
    """Why workers failed for good, if they did."""


Effect = Probe | Start | Terminate | Kill | Sweep | SendObserved | Reconnect | Notice | Show | Waiting | Exit
