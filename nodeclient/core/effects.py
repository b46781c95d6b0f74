"""The effects of the agent: what the shell is to do."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from msgspec import Struct

from coordinatord.protocol.kept_state import KeptCopy, KeptStep, PersistOrder, Resume
from coordinatord.protocol.messages import Assignment, Observed, Report


class Level(StrEnum):
    """How much a notice matters to the user."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Effect(Struct, frozen=True):
    """Something that the shell is to do."""

    rank: ClassVar[int] = 1
    """Effects with a lower rank are carried out first; those with the same rank in the order of their decisions."""


class Probe(Effect, frozen=True):
    """Find out whether the master of a round can be reached; answered by `Reached` or `Unreached`."""

    run: str
    round: int
    assignment: Assignment
    patience_s: float
    """How long to try."""
    gives_way: bool
    """Whether the node of rank 0 is to start its workers first. Workers that stay find out by themselves whether rank 0
    listens, so a node where all stay gives no way."""


class Start(Effect, frozen=True):
    """Start the workers of a round; answered by `WorkersStarted` or `StartFailed`."""

    run: str
    round: int
    assignment: Assignment
    reason: str
    """Why this round was formed."""
    stays: tuple[int, ...] = ()
    """The local ranks that are not started: processes of an earlier round go on with them."""


class Restore(Effect, frozen=True):
    """Get what the workers of a round resume from. Another `Restore` follows when more of it is known."""

    run: str
    round: int
    resume: Resume | None
    """None if they begin from nothing."""


class Protect(Effect, frozen=True):
    """Let no worker overwrite what is kept of these steps, and of no others."""

    rank: ClassVar[int] = 0  # workers that save overwrite what is not protected
    run: str
    steps: tuple[KeptStep, ...]


class Persist(Effect, frozen=True):
    """Write parts of a step to the disk, in the background; None ends that."""

    run: str
    order: PersistOrder | None


class CopyKept(Effect, frozen=True):
    """Get these parts of other nodes' state, and no others, and keep them as copies."""

    run: str
    copies: tuple[KeptCopy, ...]


class TellAlike(Effect, frozen=True):
    """Tell the workers of the round whether all ranks had the same state after its first step."""

    alike: bool


class SaveKept(Effect, frozen=True):
    """Ask all workers that keep state to save it now, before they are asked to end; answered by `KeptSaved`."""

    planned: bool
    """Whether nothing has gone wrong, so that workers have the time to go on to a step of their own choice."""
    late: bool = False
    """Whether workers have not come to such a step, and half of their time to end is over."""


class HaltWorkers(Effect, frozen=True):
    """Have all workers that keep state stand still after this step and save it; answered by `KeptSaved`."""

    step: int | None
    """None before the coordinator has named a step: then each worker stands still after the step that it is in, and the
    node reports that step."""


class LeaveRound(Effect, frozen=True):
    """Ask all workers of the round to leave it, and to wait for the next one; answered by `WorkerLeft`."""

    planned: bool = False
    """Whether nothing has gone wrong."""


class Park(Effect, frozen=True):
    """Do not end this worker with those of its round: it is out of the round, and waits for the next one."""

    local_rank: int


class Dismiss(Effect, frozen=True):
    """End workers that wait for a round, because they will not be in one."""

    local_ranks: tuple[int, ...]


class Terminate(Effect, frozen=True):
    """Send all workers the signal to end."""

    signum: int
    """The signal that made this node leave, if one did; SIGTERM otherwise."""


class Kill(Effect, frozen=True):
    """End all workers, with SIGKILL."""


class Sweep(Effect, frozen=True):
    """End everything that the workers left behind, then reserve a port; answered by `Swept`."""

    looks_at_gpus: bool = True
    """Whether to look for memory of GPUs that is still in use before that; if there is some, `GpusInUse` is the
    answer."""


class SendObserved(Effect, frozen=True):
    """Send this to the coordinator if it can be reached. The next message makes up for a lost one."""

    observed: Observed


class Reconnect(Effect, frozen=True):
    """Close the session and connect anew."""

    reason: str


class Notice(Effect, frozen=True):
    """Show the user a notice, once."""

    level: Level
    text: str
    event: str
    """What has happened, as an identifier for programs. It stays the same when the text changes."""


class Show(Effect, frozen=True):
    """Show the user why a round failed."""

    report: Report


class Waiting(Effect, frozen=True):
    """Show the user what the node waits for, and until when at most, by the agent's clock."""

    reason: str
    until: float | None
    working: bool = False
    """Whether workers go on meanwhile; then they are stopped at `until`."""
    level: Level = Level.INFO


class Exit(Effect, frozen=True):
    """End the program."""

    code: int
    message: str
    level: Level = Level.ERROR
    report: Report | None = None
    """Why workers failed for good, if they did."""


KeptOrder = Restore | Protect | CopyKept | TellAlike | Persist | SaveKept | HaltWorkers
"""What is done about the state that workers keep."""

StayOrder = LeaveRound | Park | Dismiss
"""What is done about workers that go into another round as the same processes."""
