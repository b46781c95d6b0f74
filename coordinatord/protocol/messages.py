"""The main messages between a node and the coordinator, with their limits; `codec` encodes them.

A session is one connection of a node, a WebSocket. The node sends one `Join`, then an `Observed` at each heartbeat and
at each change that cannot wait for that. The coordinator answers with `Desired` or `Degraded`, or ends the session with
a `Refused`. It may also ask for the node's log files, its workers' stacks, and their arrivals in collectives: see
`log_messages`, `stack_messages` and `arrival_messages`.

Each message has the whole state of its sender, so the next one repairs one that is lost. The limits keep a frame below
`FRAME_BYTES_MAX`, whatever a node or its user puts in. The order here is that of use: enumerations, parts, messages.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from coordinatord.protocol.arrival_messages import Arrivals, AskArrivals
from coordinatord.protocol.fields import (
    CONSEQUENCES_MAX,
    COUNTER_MAX,
    EARLY_LINES_MAX,
    FACTOR_MAX,
    LAST_LINES_MAX,
    LOG_PATH_MAX,
    NAME_MAX,
    RANKS_MAX,
    WORKERS_MAX,
    XIDS_MAX,
    Address,
    Count,
    Counter,
    Grant,
    Line,
    LocalRank,
    Name,
    Pid,
    Port,
    Seconds,
    Sentence,
    Step,
    Text,
    Window,
    WorkerExit,
)
from coordinatord.protocol.kept_state import (
    COPIES_MAX,
    DIGESTS_MAX,
    PROTECTED_MAX,
    Halt,
    Holding,
    Keeper,
    KeptCopy,
    KeptStep,
    PersistOrder,
    Resume,
    StateDigest,
)
from coordinatord.protocol.log_messages import LogChunk, ReadLog
from coordinatord.protocol.news import AtOnce, Quiet
from coordinatord.protocol.pair_messages import PairOrder, PairResult
from coordinatord.protocol.schema import SchemaError, Strict, printable
from coordinatord.protocol.stack_messages import AskStacks, Stacks

PROTOCOL_VERSION = 1
"""Every change of a message raises it; `versions` has the changes and the supported versions."""

SESSION_PATH = "/v1/session"
"""The path of a node's WebSocket."""

FRAME_BYTES_MAX = 256 * 1024
"""The limit of a frame, which has one message. With all texts at their limits in the widest letters, a `Join` is below
252 KiB, and a `Desired` with a report and the most sources of kept state below 238. A usual message is below 1 KiB, and
below 4 KiB with a report."""

DIGEST_LETTERS = 8
"""The length of the digest of a command, in hexadecimal digits: enough to distinguish the commands of a job's nodes,
and too short to reveal one."""


class Phase(StrEnum):
    """The phase of a node's local worker group."""

    PREPARING = "preparing"
    """The first phase, while the node imports the modules of `--preload` and cannot start workers."""
    IDLE = "idle"
    """No worker lives, and the last round is over here: the node is free for a new one."""
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    """All workers of the round were stopped on purpose and are confirmed dead."""
    SUCCEEDED = "succeeded"
    """All workers of the round exited with 0."""
    FAILED = "failed"
    """A worker failed, and all workers of the round are confirmed dead."""

    @property
    def has_workers(self) -> bool:
        """Whether a process of the round may still be alive."""
        return self in {Phase.STARTING, Phase.RUNNING, Phase.STOPPING}


class Goal(StrEnum):
    """The coordinator's goal for a node."""

    WAIT = "wait"
    """Have no workers, and wait for a round."""
    RUN = "run"
    """Have the workers of this assignment."""
    STOP = "stop"
    """The round is over: end its workers and confirm it."""
    EXIT = "exit"
    """Have no workers, report the outcome and exit."""


class Result(StrEnum):
    """How a run, or one node's part in it, ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    """An operator ended it."""
    LEFT = "left"
    """The node, or the last node of the run, left on purpose."""
    TIMED_OUT = "timed_out"
    """The node has waited for a round as long as its `--join-timeout` allows."""


class RefusalCode(StrEnum):
    """Why the coordinator ends a session."""

    VERSION = "version"
    MALFORMED = "malformed"
    SPEC_DIFFERS = "spec_differs"
    """The run has other settings (`JobSpec`)."""
    SUPERSEDED = "superseded"
    """A younger process has the node id, or this process has a newer connection, on which it may continue."""
    LIMIT = "limit"
    """The node joins or sends more often than it may, or the coordinator has as many nodes as it may."""
    DEGRADED = "degraded"
    """The coordinator's store fails, so it admits no node that it cannot record."""
    DRAINED = "drained"
    """An operator has drained this node."""
    FORGOTTEN = "forgotten"
    """The node's run is unknown: it is over; or, with `retry`, another coordinator may know it."""
    FORBIDDEN = "forbidden"
    """The node's access token is not for this job or this node, or this node id belongs to another token."""


class Launcher(StrEnum):
    """The launcher of a node's workers. Ranks and stores depend on it, so all nodes of a run have the same."""

    NODECLIENT = "nodeclient"
    TORCHRUN = "torchrun"


class ScaleUp(StrEnum):
    """When a round ends to include new nodes in the next one; a setting of the job."""

    NOW = "now"
    """The round ends as soon as no more nodes arrive."""
    AT_CHECKPOINT = "at-checkpoint"
    """The round ends after the next checkpoint, which the script writes or which is saved at an interval. A job whose
    workers save only on request does not wait."""
    NEVER = "never"
    """The round does not end for new nodes: they are spares."""


class OnDivergence(StrEnum):
    """The action when ranks that should have the same state have different ones; a setting of the job."""

    REPORT = "report"
    """It is said, and the round goes on."""
    RESTART = "restart"
    """The round ends, and the next one goes back to a step at which all were alike."""
    QUARANTINE = "quarantine"
    """The same, and the host of the ranks that differ from most others is charged."""


class JobSpec(Strict, frozen=True):
    """The settings that all nodes of a run must agree on."""

    nodes_min: Annotated[int, Meta(ge=1, le=RANKS_MAX)]
    nodes_max: Annotated[int, Meta(ge=1, le=RANKS_MAX)]
    max_restarts: Counter
    """How many failures of workers may be followed by another round."""
    launcher: Launcher = Launcher.NODECLIENT
    scale_up: ScaleUp = ScaleUp.NOW
    hang_timeout_s: Seconds | None = None
    """The time without a step after which a hung round is restarted, even if the culprit computes. None: the time
    follows from the run's steps, and a round whose culprit computes is not restarted. 0: no hung round is restarted."""
    drain_laggards: Annotated[float, Meta(ge=0, le=FACTOR_MAX)] = 0.0
    """A node is drained if a late worker of it makes each step this many times as long; 0: none is drained."""
    restart_window_s: Window | None = None
    """If set, only the restarts within this time before now are counted."""
    max_futile_rounds: Counter = 0
    """How many rounds in a row may fail without a new step before the run ends; 0 for any number."""
    on_divergence: OnDivergence = OnDivergence.REPORT

    def __post_init__(self) -> None:
        """Reject an empty range. Raises `SchemaError`."""
        if self.nodes_min > self.nodes_max:
            raise SchemaError(f"nodes_min is {self.nodes_min}, more than nodes_max, {self.nodes_max}")


class HangKind(StrEnum):
    """The problem of the worker that others wait for."""

    ABSENT = "absent"
    """It has ended, or its node does not answer."""
    STUCK = "stuck"
    """Its stack does not change, it uses no CPU, and its IO does not move."""
    BUSY = "busy"
    """It does something else, such as an evaluation."""
    MISMATCHED = "mismatched"
    """It waits in another collective than the others of its group, or in one of another size or type."""
    NETWORK = "network"
    """All of a group wait in the same collective, which completes for none."""


class Cause(StrEnum):
    """The class of a failure's cause. It decides whether a new round follows, and who is charged."""

    USER_CODE = "user_code"
    """An error of the script or of its environment: the same on any other node."""
    HOST_MEMORY = "host_memory"
    """The kernel's OOM killer, or an allocation that failed."""
    GPU_MEMORY = "gpu_memory"
    SIGNAL = "signal"
    """Somebody outside the job killed the worker."""
    PREEMPTED = "preempted"
    """Somebody outside the job asked it to end, as a scheduler does that takes the host away."""
    HANG = "hang"
    """A worker did not come to what all others waited for."""
    DIVERGENCE = "divergence"
    """Ranks that should have the same state have different ones."""
    DEVICE = "device"
    """A GPU is broken or gone: an Xid error that is the node's, ECC, NVLink, or a GPU that cannot be found."""
    NETWORK = "network"
    DISK = "disk"
    UNKNOWN = "unknown"

    @property
    def is_charged(self) -> bool:
        """Whether a restart after it counts against `--max-restarts`. The job is not to blame for its hosts."""
        return self not in {Cause.DEVICE, Cause.PREEMPTED}


class LastOutput(Strict, frozen=True):
    """What a worker that exited with 0 wrote last to stderr."""

    lines: Annotated[tuple[Line, ...], Meta(max_length=EARLY_LINES_MAX)]
    log: Annotated[str, printable(LOG_PATH_MAX)]
    """The file with its stderr, on its host; empty if there is none."""


class Ended(Strict, frozen=True):
    """A worker that exited with 0 while its round was on."""

    rank: Count
    age_s: Seconds
    """The time from its end to this message."""
    output: LastOutput | None = None
    """Its last output, if it was the first of its node to end; None until all workers of the node are gone."""


class Killed(Strict, frozen=True):
    """Workers of a node that were killed because they had not saved their state in time."""

    ranks: Annotated[tuple[Count, ...], Meta(min_length=1, max_length=CONSEQUENCES_MAX)]
    """The first few of them."""
    count: Annotated[int, Meta(ge=1, le=WORKERS_MAX)]
    """The number of all of them."""
    after_s: Seconds
    """The time that they had, from the beginning of the stop."""


class SecondaryFailure(Strict, frozen=True):
    """A worker that failed after another one, in consequence or with the same error, in a report on the round."""

    node: Name
    rank: Count
    exit_code: WorkerExit
    same_error: bool = False
    left: bool = False
    """It left its round because of a failed collective, and its process has not ended."""


class EarlyEnd(Strict, frozen=True):
    """A worker that had exited with 0 when another one failed."""

    node: Name
    rank: Count
    before_s: Seconds
    """The time from its end to that failure."""


class NodeOffer(Strict, frozen=True):
    """The properties of a node, fixed for the life of its process."""

    host: Address
    """The host's own name, for people and for the order of new nodes; not used to connect."""
    host_id: Name
    """The boot id and the network namespace: equal if and only if two nodes reach each other over loopback."""
    workers: Annotated[int, Meta(ge=1, le=WORKERS_MAX)]
    """The size of its local worker group."""
    role: Name
    topology: Annotated[str, printable(128)]
    """A sort key: nodes with equal or adjacent keys get adjacent ranks; empty if unknown."""
    group_rank: Count | None
    """The group rank that its user asks for; granted unless others ask for the same."""
    advertise_address: Address | None
    """The address for other nodes, set by its user."""
    routable_address: Address | None
    """Its guess at such an address, used only if the coordinator has seen none, or only a proxy's."""
    probe_port: Port
    """The port that answers with its node id, so that others can verify that an address leads to it."""
    join_timeout_s: Seconds
    """The longest wait for a round."""
    stop_timeout_s: Seconds
    """The longest time from SIGTERM to SIGKILL for its workers."""
    log_dir: Annotated[str, printable(LOG_PATH_MAX)] = ""
    """The folder on its host with the logs of this job, in RUN/round_N/RANK below it; empty if there is none, or not
    known."""


class Follower(Strict, frozen=True):
    """A worker that failed after another one of its node, within that one's `Failure`."""

    rank: Count
    exit_code: WorkerExit
    same_error: bool = False
    """Its error is the same, so the other failure is not its cause."""
    left: bool = False
    """It left its round because of a failed collective, and its process has not ended."""


class Failure(Strict, frozen=True):
    """The first worker of a node's group that failed in this round."""

    rank: Count
    local_rank: Count
    exit_code: WorkerExit
    pid: Pid
    """Its process id; 0 if it was never started."""
    message: Sentence
    """The node's diagnosis beyond the code, such as why the process did not start or who killed it."""
    error: Sentence
    """The exception that ended it, in one line; empty if there was none, or it is not known."""
    last_lines: Annotated[tuple[Line, ...], Meta(max_length=LAST_LINES_MAX)]
    """The end of its traceback, or of its output on stderr."""
    followers: Annotated[tuple[Follower, ...], Meta(max_length=CONSEQUENCES_MAX)]
    """The first few workers of the node that failed later, and that the node did not end."""
    age_s: Quiet[Seconds]
    """The time from the failure to this message: two hosts' clocks are never compared."""
    log: Annotated[str, printable(LOG_PATH_MAX)] = ""
    """The file with its stderr, on its host; empty if there is none, or not known."""
    hang: HangKind | None = None
    """Set if it hung: all others waited for it, `message` says where, and `last_lines` is its stack."""
    hang_ranks: Annotated[tuple[Count, ...], Meta(max_length=CONSEQUENCES_MAX)] = ()
    """The first few ranks that hung, if there are several; `rank` is the first of them."""
    diverged: bool = False
    """Set if its state differs from that of other ranks, as `message` explains; no process has ended."""
    left: Quiet[bool] = False
    """It left its round because of a failed collective, and its process has not ended."""
    stopped: bool = False
    """It had reported an error, and its node stopped it before its process had exited. So it counts only if another
    worker failed with the same error."""
    final: bool = False
    """The worker declared that no restart mends its error: the run ends."""
    xids: Annotated[tuple[Count, ...], Meta(max_length=XIDS_MAX)] = ()
    """The last errors (Xid) that the NVIDIA driver has logged on the node since the round was started there."""


class Straggler(Strict, frozen=True):
    """A worker whose last reported step is behind those of others."""

    node: Name
    rank: Count
    step: Step


class Report(Strict, frozen=True):
    """The root cause of a round's failure, for the people at every node."""

    round: Counter
    nodes: Count
    """How many took part in the round."""
    node: Name
    host: Address
    failure: Failure
    consequences: Annotated[tuple[SecondaryFailure, ...], Meta(max_length=CONSEQUENCES_MAX)]
    consequences_count: Count
    """The number of all workers that failed later, as far as known."""
    same_error_count: Count = 0
    """The number of these that failed with the same error."""
    early: Annotated[tuple[EarlyEnd, ...], Meta(max_length=CONSEQUENCES_MAX)] = ()
    """The first workers of the round that had exited with 0 before it failed."""
    early_output: LastOutput | None = None
    """The last output of the first of these; None without one, or if not known."""
    step: Step | None = None
    """The highest step that any worker had reported."""
    stragglers: Annotated[tuple[Straggler, ...], Meta(max_length=CONSEQUENCES_MAX)] = ()
    """The first few workers that had not reported it, the slowest first."""
    cause: Cause = Cause.UNKNOWN
    workers: Count = 0
    """How many took part in the round; 0 if not known."""
    excused_by: Annotated[str, printable(NAME_MAX)] = ""
    """The lost node that may have caused the failure, which is not charged then; empty if there is none."""


SECTION_NAME_MAX = 16
"""The length of a name in bytes: two words of a worker's slot."""


class Section(Strict, frozen=True):
    """The section with the latest limit, of those that a node's workers are in."""

    name: Annotated[str, printable(SECTION_NAME_MAX, least=1)]
    limit_s: Seconds
    """Its longest duration, set by the script."""
    age_s: Seconds
    """The time from its beginning to this message."""
    local_rank: LocalRank
    """Its worker."""


class ColdCause(StrEnum):
    """Why workers could not be forked from the parent interpreter."""

    COMMAND = "command"
    """The command line does not begin with a Python that can be a parent."""
    IMPORT = "import"
    """A module of `--preload` cannot be imported."""
    PROCESS = "process"
    """A module starts a process or a thread, which forks lose."""
    GPU = "gpu"
    """A module opens CUDA or ROCm, which forks cannot use."""
    PARENT = "parent"
    """The parent interpreter could not start, was too slow, did not fork or has ended."""


class WhyCold(Strict, frozen=True):
    """Why workers are cold in spite of `--preload`."""

    cause: ColdCause
    text: Sentence


class WorkerStarts(Strict, frozen=True):
    """The workers of a node in its round, counted by the way they were started."""

    in_place: Count
    """They continue as the same processes of the last round."""
    warm: Count
    """They were forked from the parent interpreter."""
    cold: Count
    why_not: Sentence = ""
    """Why workers did not continue in place; empty if they did, could never have, or were killed."""
    why_cold: WhyCold | None = None
    """Why some are cold in spite of `--preload`; None if none is."""


class CheckResult(StrEnum):
    """The result of a health check."""

    GOOD = "good"
    WARNING = "warning"
    BAD = "bad"
    UNKNOWN = "unknown"
    """The command could not be started, did not end in time or ended in another way, or the built-in check could not
    read what it needs."""


_CHECK_SAYS = {
    CheckResult.GOOD: "passes",
    CheckResult.WARNING: "warns",
    CheckResult.BAD: "failed",
    CheckResult.UNKNOWN: "gave no answer",
}


class HealthCheck(Strict, frozen=True):
    """The last health check of a node: the built-in check, and a run of the command of `--health-check`."""

    number: Counter
    """How many checks the node has made, so that each one is news."""
    result: CheckResult
    text: Sentence = ""
    """The reason: the last line of the command's output, why it gave no answer, or the built-in check's finding."""

    @property
    def says(self) -> str:
        """The result for a person: `failed: GPU 3 has fallen off the bus`."""
        return _CHECK_SAYS[self.result] + (f": {self.text}" if self.text else "")


class Observed(Strict, frozen=True, tag=True):
    """The whole observed state of a node.

    The coordinator takes steps, sections and digests from each report, though a change of these is no news.
    """

    run: AtOnce[Annotated[str, printable(128)]]
    """The run of `round`; empty before the first."""
    round: AtOnce[Counter]
    """The last round of the node; 0 before the first."""
    phase: AtOnce[Phase]
    port: AtOnce[Port]
    """A port reserved for MASTER_PORT, in case it gets group rank 0 of the next round."""
    leaving: AtOnce[bool]
    """Whether its user asked it to leave, or it has given up and stays only to write to the disk."""
    failure: AtOnce[Failure | None]
    heard_s: Quiet[Seconds]
    """The time since the last message of the coordinator in this session, which shows how late its messages arrive."""
    beat: Quiet[bool]
    """Whether this is a heartbeat, which the coordinator always answers, so each side knows that the other lives."""
    steps: Quiet[Annotated[tuple[Step | None, ...], Meta(max_length=WORKERS_MAX)]] = ()
    """The last reported step of each worker of the round, by local rank. All are None if a worker has announced steps,
    but none has reported one; empty without any sign of steps."""
    step_age_s: Quiet[Seconds | None] = None
    """The age of the newest of these steps at this message: two hosts' clocks are never compared."""
    stepped_twice: Quiet[bool] = False
    """Whether a worker has reported two steps in the round, or more. `steps` has only the last ones, so it may not show
    that."""
    idle_s: Quiet[Seconds] = 0.0
    """The time from the end of its last worker, or from the node's start, to this message; 0 while one may live."""
    ended: Quiet[Annotated[tuple[Ended, ...], Meta(max_length=CONSEQUENCES_MAX)]] = ()
    """The first workers of the round that exited with 0 unasked. They matter only when a round is judged, and each node
    sends a message before that."""
    killed: AtOnce[Quiet[Killed | None]] = None
    """Its workers of the round that were killed before they had saved their state, if any. Sent at once, to be known
    when the round is judged, but no news before that."""
    cut_off: Quiet[bool] = False
    """Whether it has ended its workers of the round because it was out of touch with the coordinator for too long."""
    kept: Holding | None = None
    """The training state of this run that it keeps in memory; None if it keeps none. After a change that the
    coordinator may be waiting for, such as a copy or a failed restore, the node sends its next heartbeat at once."""
    section: Quiet[Section | None] = None
    """The section of its workers; None without one."""
    begun: Quiet[WorkerStarts | None] = None
    """How its workers of the round were started; None before that, or if all are cold for lack of an alternative."""
    pids: Quiet[Annotated[tuple[Pid, ...], Meta(max_length=WORKERS_MAX)]] = ()
    """The process id of each worker of the round, by local rank, 0 for one that has ended; empty if none is started."""
    held_up: Sentence = ""
    """The cause of a delay of the round's end on this node although its workers are dead; empty without one."""
    check: AtOnce[HealthCheck | None] = None
    """The last health check; None before the first one has ended, and if the user wants none."""
    pair: AtOnce[PairResult | None] = None
    """The result of the last test with another node; None before the first one has ended."""
    digests: Quiet[Annotated[tuple[StateDigest | None, ...], Meta(max_length=DIGESTS_MAX)]] = ()
    """The last digest of each worker of the round whose state other ranks should have as well, by local rank; empty
    without any, and on a node with more than `DIGESTS_MAX` workers."""


class Join(Strict, frozen=True, tag=True):
    """The first message of a session: the node's identity, and its first observed state."""

    version: Annotated[int, Meta(ge=0, le=COUNTER_MAX)]
    job: Name
    node: Name
    incarnation: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    """The number of a nodeclient process. Of two processes with the same node id, the greater one is the younger."""
    spec: JobSpec
    offer: NodeOffer
    observed: Observed
    release: Annotated[str, printable(64)] = ""
    """The release of nodeclient, as in its `--version`; empty if not known."""
    age_s: Seconds | None = None
    """The age of the nodeclient process at this message; None if not known. It distinguishes a late node of a run that
    has just ended from one that was started to begin another run, without comparing clocks."""
    command: Annotated[str, printable(2 * DIGEST_LETTERS)] = ""
    """A digest of its script and one of its whole command, each of `DIGEST_LETTERS`, to compare with other nodes; empty
    if not known."""
    keeper: Keeper | None = None
    """How others fetch its kept training state; None if it cannot keep any."""
    awaits_own: bool = False
    """Whether it looks for the coordinator of its run: any other one has to refuse it for now."""


class Assignment(Strict, frozen=True):
    """One node's part of a round: its ranks and the master, but not the other nodes, which may be thousands.

    The fields up to `role_world_size` are torchrun's variables; `first_` stands before those of the first worker.
    """

    group_rank: Count
    group_world_size: Count
    first_rank: Count
    """The first of its workers' consecutive ranks, in the order of their local ranks."""
    world_size: Count
    first_role_rank: Count
    role_world_size: Count
    master_node: Name
    master_address: Address
    master_port: Port
    master_probe_port: Port
    """The port where that node answers with its id: each node verifies it before it starts its workers."""
    restarts_used: Counter
    max_restarts: Counter


class Outcome(Strict, frozen=True):
    """How the run ended for a node, which logs it and exits with this code."""

    result: Result
    exit_code: Annotated[int, Meta(ge=0, le=255)]
    summary: Text


class Desired(Strict, frozen=True, tag=True):
    """The whole desired state of a node."""

    run: AtOnce[Annotated[str, printable(128)]]
    round: AtOnce[Counter]
    """The round of the goal; with `wait`, the last one of the run."""
    goal: AtOnce[Goal]
    reason: Text
    wait_s: Seconds | None
    """The longest time that the node waits: for a round or its release, or at the end of a run for the write to the
    disk. None if it is not known, or if the goal is `run` or `exit`."""
    heartbeat_s: Quiet[Grant]
    lease_s: Quiet[Grant]
    """The node sends a heartbeat at least every `heartbeat_s`, and is lost after `lease_s` of silence."""
    outage_grace_s: Seconds
    """A node that is cut off from the coordinator for longer stops its workers, since it may have been replaced."""
    planned: AtOnce[bool]
    """Whether a `stop` or `exit` is no consequence of an error, so that workers get time to save their state."""
    assignment: Assignment | None
    """Set for `run`, and only there."""
    outcome: AtOnce[Outcome | None]
    """Set for `exit`, and only there."""
    report: Report | None
    """Why the last round failed: with `exit`, and with `run` until the node's workers are running."""
    remark: Sentence = ""
    """A warning for the user of the node, if any: this run repeats a job that had succeeded, or another node was
    started with another command. With `stop`, it is the worker that hung in the round, if one is known. With `exit`, it
    is the step that is lost, which the outcome names as well."""
    resume: Resume | None = None
    """The step that the workers of the round resume from: with `run`, until the node reports that it has all parts, or
    workers make steps. None does not revoke an earlier value; if the round has none, its workers start from nothing."""
    protected: Annotated[tuple[KeptStep, ...], Meta(max_length=PROTECTED_MAX)] | None = None
    """The steps that the node must not overwrite. None changes nothing, since they are not known yet."""
    halt: AtOnce[Halt | None] = None
    """The step that all workers keep before a planned `stop`; None if each keeps its own last one."""
    persist: AtOnce[PersistOrder | None] = None
    copies: Annotated[tuple[KeptCopy, ...], Meta(max_length=COPIES_MAX)] = ()
    """The missing copies of other nodes' state that the node has to fetch. It stops fetching any other."""
    alike: AtOnce[bool | None] = None
    """Whether all ranks had the same state after the first step of the round; None before that is known."""
    pair: AtOnce[PairOrder | None] = None
    """The test with another node that is to run while the node waits; None if none is to."""

    def __post_init__(self) -> None:
        """Check that the goal has its fields. Raises `SchemaError`."""
        if (self.assignment is not None) != (self.goal is Goal.RUN):
            raise SchemaError(f"assignment belongs to the goal {Goal.RUN} and only there, not to {self.goal}")
        if (self.outcome is not None) != (self.goal is Goal.EXIT):
            raise SchemaError(f"outcome belongs to the goal {Goal.EXIT} and only there, not to {self.goal}")


class Degraded(Strict, frozen=True, tag=True):
    """The coordinator lives but cannot decide anything now, so the last `Desired` stays in force.

    It answers heartbeats while the store fails, since the coordinator might forget any decision that it made.
    """

    reason: Text


class Refused(Strict, frozen=True, tag=True):
    """The last message of a refused session."""

    code: RefusalCode
    message: Text
    retry: bool
    """Whether the node may be admitted later."""


Message = (
    Join | Observed | Desired | Degraded | Refused | ReadLog | LogChunk | AskStacks | Stacks | AskArrivals | Arrivals
)
