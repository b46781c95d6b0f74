"""The events of the agent: everything that can happen to a node. The shell submits them, also in answer to effects."""

from __future__ import annotations

from msgspec import Struct

from coordinatord.protocol.messages import Degraded, Desired, LastOutput, Refused, WhyCold
from coordinatord.protocol.pair_messages import PairResult
from nodeclient.core.host_health import GpuUse, HostFacts
from nodeclient.core.leftover_stages import Leftover


class Event(Struct, frozen=True):
    """The base of all events."""


class SearchBegan(Event, frozen=True):
    """The search for a coordinator begins: the node's guard and its disk are ready."""


class Prepared(Event, frozen=True):
    """Workers can be started: the modules of `--preload` are imported, or cannot be."""


class SessionOpened(Event, frozen=True):
    """The coordinator was reached, and the node has sent its `Join`."""

    coordinator: str


class SessionClosed(Event, frozen=True):
    """The session has ended, or none was opened, since the coordinator cannot be reached or refuses this node."""

    reason: str


class DesiredReceived(Event, frozen=True):
    """The coordinator sent the desired state."""

    desired: Desired


class CoordinatorDegraded(Event, frozen=True):
    """The coordinator lives, but cannot decide anything at present."""

    degraded: Degraded


class TurnedAway(Event, frozen=True):
    """The coordinator refuses this node."""

    refused: Refused
    patience_s: float | None = None
    """The seconds after which a refusal that stays the same becomes final; None if it never does."""


class Reached(Event, frozen=True):
    """The answer to `Probe` if workers can be started: the master of the round answers at its address."""

    run: str
    round: int


class Unreached(Event, frozen=True):
    """The answer to `Probe` if they cannot: the master does not answer, or another run uses the `--persist` folder."""

    run: str
    round: int
    message: str


class WorkersStarted(Event, frozen=True):
    """All workers of the round have been started."""

    warm: int = 0
    """How many of them were forked from the parent interpreter."""
    why_cold: WhyCold | None = None
    """Why other new ones were not forked; None if no worker was to be forked."""
    pids: tuple[int, ...] = ()
    """Their process ids, by local rank."""


class StartFailed(Event, frozen=True):
    """A worker could not be started. Those with lower local ranks were, and those with higher ones are not tried."""

    local_rank: int
    exit_code: int
    """The exit code that a shell would have ended with."""
    message: str


class Diagnosis(Struct, frozen=True):
    """Why a worker ended or failed, as far as is known beyond its exit code.

    The texts may have any length and characters.
    """

    pid: int = 0
    """The process id; 0 if there was no process."""
    message: str = ""
    """The node's diagnosis of the end."""
    error: str = ""
    """The exception that ended the worker."""
    last_lines: tuple[str, ...] = ()
    """The end of its traceback, or of what it wrote to stderr."""
    log: str = ""
    """The file with all that it wrote to stderr; empty if there is none."""
    left: bool = False
    """Whether the worker lives, and leaves its round."""
    final: bool = False
    """Whether the worker says that no restart helps."""
    xids: tuple[int, ...] = ()
    """The errors (Xid) that the NVIDIA driver has logged on this host since the round was started here."""


class WorkerExited(Event, frozen=True):
    """A worker's process ended; `exit_code` is as in `subprocess`."""

    local_rank: int
    exit_code: int
    diagnosis: Diagnosis
    age_s: float = 0.0
    """How long ago it ended; the diagnosis takes a moment."""
    over_s: float = 0.0
    """How long its program had been over by then; 0 if that is not known."""


class WorkerOutlived(Event, frozen=True):
    """A worker that was asked to end has exited by itself, and processes of its group live; `WorkerExited` follows."""

    local_rank: int
    leftovers: tuple[Leftover, ...]


class ReuseReported(Event, frozen=True):
    """A worker has reported whether it can enter another round as the same process."""

    local_rank: int
    able: bool = True
    """False when the worker's connection is gone."""


class CollectiveFailed(Event, frozen=True):
    """A collective has failed in a worker, which then leaves its round and may enter the next one.

    It counts as a failure, like an exit with `exit_code`. The worker stays in its round until `WorkerLeft`, because
    destroying its process groups may hang.
    """

    local_rank: int
    exit_code: int
    """The exit code of a worker that ends by this error."""
    diagnosis: Diagnosis
    age_s: float = 0.0
    """How long ago it failed. Earlier exits are submitted before it, and each diagnosis takes a moment."""


class WorkerLeft(Event, frozen=True):
    """A worker has left its round: its process holds nothing of the round, and waits for the next one."""

    local_rank: int


class WorkerAborts(Event, frozen=True):
    """A worker has begun or finished aborting its NCCL communicators, so that it can leave its round."""

    local_rank: int
    took_s: float | None = None
    """How long the abort took; None at its begin."""


class WorkerRefuses(Event, frozen=True):
    """A worker was asked to leave its round, and cannot."""

    local_rank: int
    why: str


WorkerEnd = StartFailed | WorkerExited | CollectiveFailed
"""The ways in which a worker fails or ends."""


class Keeping(Event, frozen=True):
    """Workers of the round keep state in memory of this node, and are to save it before they end."""

    save_within_s: float
    """How long a save may take."""
    writes_checkpoints: bool = False
    """Their script writes a checkpoint of its own before a planned end, which takes longer."""


class KeptSaved(Event, frozen=True):
    """Every worker that keeps state has saved it, or has reported why it cannot, or has ended."""

    put_off: bool = False
    """Whether a script goes on to a step of its own choice before it saves. It may never reach that step."""


class KeptChanged(Event, frozen=True):
    """The node's report of kept state has changed, and is due now."""


class Swept(Event, frozen=True):
    """No process of the round lives, and none that its workers left behind."""

    port: int
    """The port that was reserved for the next round."""
    early_output: LastOutput | None = None
    """What the first worker that exited with 0 wrote last; None if there is none."""


class SweepFailed(Event, frozen=True):
    """A process of the round outlives SIGKILL."""

    message: str


class GpusInUse(Event, frozen=True):
    """GPU memory is in use although no worker lives: it is not freed yet, or belongs to other programs.

    The shell submits this once before the first round, and then in answer to `Sweep`.
    """

    gpus: tuple[GpuUse, ...]


class HealthChecked(Event, frozen=True):
    """The host was checked: the command of `--health-check` has ended, or was given up, and the facts are read."""

    exit_code: int | None
    """The exit code as in `subprocess`, 0 without a command; None if it could not be started or did not end in time."""
    text: str
    """The last line of its output, or why there is no exit code; any characters."""
    facts: HostFacts | None = None
    """The facts for the built-in check; None if the user has switched that off."""


class PairTested(Event, frozen=True):
    """A test with another node has ended, or was given up."""

    result: PairResult


class EmbeddedCoordinatorEnded(Event, frozen=True):
    """The coordinator has ended that this node started for a job on its host only. Nothing starts another one."""

    how: str


class LeaveRequested(Event, frozen=True):
    """The user or the system wants this node to leave."""

    signum: int
    """The signal that asked for it; 0 if none did."""
    training_is_over: bool = False
    """Whether all workers of the round that was started last have reported that their training is over."""


class Tick(Event, frozen=True):
    """The time that `next_deadline` named has come."""
