"""The effects of the agent: each asks the shell to do one thing. The events that answer an effect are named with it."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from msgspec import Struct

from coordinatord.protocol.kept_state import KeptCopy, KeptStep, PersistOrder, Resume
from coordinatord.protocol.messages import Assignment, Observed, Report
from coordinatord.protocol.pair_messages import PairOrder


class Level(StrEnum):
    """How much a notice matters to the user."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Effect(Struct, frozen=True):
    """The base of all effects."""

    turn: ClassVar[int] = 1
    """Effects with a lower turn are carried out first; those with the same turn in the order of their decisions."""


class Probe(Effect, frozen=True):
    """Find out whether the master of a round can be reached; answered by `Reached` or `Unreached`."""

    run: str
    round: int
    assignment: Assignment
    patience_s: float
    """How long to try."""
    delays_start: bool
    """Whether this node is to give the node of rank 0 a head start before it starts workers. A node that only reuses
    workers gives none, since they find out by themselves whether rank 0 listens."""


class Start(Effect, frozen=True):
    """Start the workers of a round; answered by `WorkersStarted` or `StartFailed`."""

    run: str
    round: int
    assignment: Assignment
    reason: str
    """Why this round was formed."""
    reused: tuple[int, ...] = ()
    """The local ranks for which the process of an earlier round is reused."""


class Restore(Effect, frozen=True):
    """Get the parts that the workers of a round resume from. Another `Restore` follows when more of them are known."""

    run: str
    round: int
    resume: Resume | None
    """None if they begin from nothing."""


class Protect(Effect, frozen=True):
    """Protect the kept state of these steps from being overwritten by workers, and that of no others."""

    turn: ClassVar[int] = 0  # workers that save overwrite what is not protected
    run: str
    steps: tuple[KeptStep, ...]


class Persist(Effect, frozen=True):
    """Write parts of a step to the disk in the background."""

    run: str
    order: PersistOrder | None
    """None gives up the write in progress."""


class CopyKept(Effect, frozen=True):
    """Copy these parts from other nodes, and drop the copies of all other parts."""

    run: str
    copies: tuple[KeptCopy, ...]


class TellAlike(Effect, frozen=True):
    """Notify the workers whether all ranks of the round had the same state after its first step.

    If they had, one copy of the state stands for all ranks. If not, each rank keeps its own.
    """

    alike: bool


class SaveKept(Effect, frozen=True):
    """Ask all workers that keep state to save it now, before they are asked to end; answered by `KeptSaved`.

    It is sent if they are not to halt after a common step (`HaltWorkers`), or did not come to that step in time.
    """

    planned: bool
    """Whether nothing has gone wrong. Then a script may put off the save until a step that it chooses."""
    late: bool = False
    """Whether it is the second request, to workers that have put off the first one: half of their time is over."""


class HaltWorkers(Effect, frozen=True):
    """Have all workers that keep state halt after this step and save it, in a planned end; answered by `KeptSaved`."""

    step: int | None
    """None before the coordinator names a step: each worker halts after its present one, which the node reports."""


class LeaveRound(Effect, frozen=True):
    """Ask all workers of the round to leave it, and to wait for the next one as the same processes.

    Each answers with `WorkerLeft` or `WorkerRefuses`.
    """

    planned: bool = False
    """Whether nothing has gone wrong."""


class Park(Effect, frozen=True):
    """Do not end this worker with those of its round: it is out of the round, and waits for the next one."""

    local_rank: int


class Dismiss(Effect, frozen=True):
    """End parked workers that will not be in another round."""

    local_ranks: tuple[int, ...]


class Terminate(Effect, frozen=True):
    """Send all workers the signal to end."""

    signum: int
    """The signal that made this node leave, if one did; SIGTERM otherwise."""
    planned: bool
    """Whether nothing has gone wrong."""


class Kill(Effect, frozen=True):
    """End all workers, with SIGKILL."""


class Sweep(Effect, frozen=True):
    """End everything that the workers left behind, then reserve a port for the next round, in case rank 0 is here.

    Answered by `Swept`, `SweepFailed` or `GpusInUse`.
    """

    checks_gpus: bool = True
    """Whether the sweep waits for GPU memory that is in use, and is answered by `GpusInUse`. False if no round follows,
    if parked workers hold some of that memory, or if the wait for it is over."""


class CheckHealth(Effect, frozen=True):
    """Check this host in the background; answered by `HealthChecked`."""

    within_s: float
    """How long it may take."""


class RunPairTest(Effect, frozen=True):
    """Run this test with another node in the background, in place of any other; answered by `PairTested`."""

    turn: ClassVar[int] = 0  # later effects may start workers, which need the host for themselves
    order: PairOrder | None
    """None ends the one that runs."""


class SendObserved(Effect, frozen=True):
    """Send this report to the coordinator if it is connected. The next report makes up for a lost one."""

    observed: Observed


class Reconnect(Effect, frozen=True):
    """Close the session, in which the coordinator has fallen silent, and connect anew."""

    reason: str


class Notice(Effect, frozen=True):
    """Show the user a notice, once."""

    level: Level
    text: str
    event: str
    """The kind of notice, as an identifier for programs that does not change with the text."""


class Show(Effect, frozen=True):
    """Show the user why a round failed."""

    report: Report


class Waiting(Effect, frozen=True):
    """Show the user what the node waits for."""

    reason: str
    until: float | None
    """When the wait ends at the latest, by the agent's clock; None if it has no limit."""
    working: bool = False
    """Whether workers go on meanwhile. Then they are stopped at `until`."""
    level: Level = Level.INFO


class Exit(Effect, frozen=True):
    """End the program."""

    code: int
    message: str
    level: Level = Level.ERROR
    report: Report | None = None
    """The report of a job that failed for good; None if it did not."""


KeptOrder = Restore | Protect | CopyKept | TellAlike | Persist | SaveKept | HaltWorkers
"""The effects on the state that workers keep."""

ReuseOrder = LeaveRound | Park | Dismiss
"""The effects on workers that may go into another round as the same processes."""
