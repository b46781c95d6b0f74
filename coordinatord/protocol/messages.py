"""Every message of the protocol, with its limits; how they become bytes is in `codec`.

A session is one WebSocket: the node sends one `Join`, then an `Observed` whenever something changed and at each
heartbeat; the coordinator answers with `Desired` or `Degraded`, or ends the session with a `Refused`. Beside that it
may read the node's log files, ask where its workers stand, and ask when they arrived in collectives: see
`log_messages`, `stack_messages` and `arrival_messages`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from coordinatord.protocol.arrival_messages import Arrivals, AskArrivals
from coordinatord.protocol.fields import (
    CONSEQUENCES_MAX,
    COUNTER_MAX,
    FACTOR_MAX,
    LAST_LINES_MAX,
    LOG_MAX,
    RANKS_MAX,
    WORKERS_MAX,
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
    WorkerExit,
)
from coordinatord.protocol.kept_state import (
    COPIES_MAX,
    PROTECTED_MAX,
    Halt,
    Holding,
    Keeper,
    KeptCopy,
    KeptStep,
    PersistOrder,
    Resume,
)
from coordinatord.protocol.log_messages import LogChunk, ReadLog
from coordinatord.protocol.schema import SchemaError, Strict, printable
from coordinatord.protocol.stack_messages import AskStacks, Stacks

PROTOCOL_VERSION = 1
"""Every change of a message raises it; `versions` has the changes, and which versions are supported."""

SESSION_PATH = "/v1/session"
"""Where a node opens its WebSocket."""

FRAME_BYTES_MAX = 256 * 1024
"""A frame holds one message; the largest legal one (a `Desired` with a report and as many sources of kept state as a
node may have, all texts at their limits in the widest letters) is below 232 KiB, and the largest `Join` below 180. A
usual message is below 1 KiB, and below 4 KiB with a report."""


class Phase(StrEnum):
    """What a node's local worker group is doing."""

    PREPARING = "preparing"
    """No worker can start yet: the node imports the modules of `--preload`. Only the first phase can be this one."""
    IDLE = "idle"
    """No worker lives, and the last round is over here: the node can be given a new one."""
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    """All workers of the round were ended on purpose and are confirmed dead."""
    SUCCEEDED = "succeeded"
    """All workers of the round exited with 0."""
    FAILED = "failed"
    """A worker failed, and all workers of the round are confirmed dead."""

    @property
    def has_workers(self) -> bool:
        """Whether a process of the round may still be alive."""
        return self in {Phase.STARTING, Phase.RUNNING, Phase.STOPPING}


class Goal(StrEnum):
    """What the coordinator wants of a node."""

    WAIT = "wait"
    """Have no workers, and wait for a round."""
    RUN = "run"
    """Have the workers of this assignment."""
    STOP = "stop"
    """The round is over: end its workers and confirm it."""
    EXIT = "exit"
    """Have no workers, report the outcome and exit."""


DIGEST_LETTERS = 8
"""Enough to distinguish commands, and too few to find out what a command was."""


class Result(StrEnum):
    """How a run, or one node's part in it, ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    """An operator ended it."""
    LEFT = "left"
    """The node left on purpose; of a run, its last node did."""
    TIMED_OUT = "timed_out"


class RefusalCode(StrEnum):
    """Why the coordinator ends a session."""

    VERSION = "version"
    MALFORMED = "malformed"
    SPEC_DIFFERS = "spec_differs"
    SUPERSEDED = "superseded"
    """A younger process has the node id, or this process has joined by a later connection: then it may go on there."""
    LIMIT = "limit"
    DEGRADED = "degraded"
    """The coordinator's store fails, so it lets in no node that it would forget."""
    DRAINED = "drained"
    """An operator keeps this node out for now."""
    FORGOTTEN = "forgotten"
    """Nothing is known of the run that the node comes back to: it is over, or with `retry`, another coordinator may
    know it."""
    FORBIDDEN = "forbidden"
    """The node's access token is not for this job or this node, or a bearer of another token has this node id."""


class Launcher(StrEnum):
    """What starts the workers of a node. Ranks and stores depend on it, so all nodes of a run have the same."""

    NODECLIENT = "nodeclient"
    TORCHRUN = "torchrun"


class ScaleUp(StrEnum):
    """When a round ends so that the next one includes nodes that have arrived; a setting of the job."""

    NOW = "now"
    """It ends as soon as no more arrive."""
    AT_CHECKPOINT = "at-checkpoint"
    """It ends when the next checkpoint is there, which the script writes or which is saved at an interval. A job whose
    workers save whenever they are asked to, and at no other time, does not wait."""
    NEVER = "never"
    """It ends for other reasons alone: until then they are spares."""


class JobSpec(Strict, frozen=True):
    """What all nodes of a run must agree on."""

    nodes_min: Annotated[int, Meta(ge=1, le=RANKS_MAX)]
    nodes_max: Annotated[int, Meta(ge=1, le=RANKS_MAX)]
    max_restarts: Counter
    launcher: Launcher = Launcher.NODECLIENT
    scale_up: ScaleUp = ScaleUp.NOW
    hang_timeout_s: Seconds | None = None
    """The time without a step after which a hang is restarted, even if the culprit computes. None: it follows from the
    run's own steps, and a hang whose culprit computes is not restarted. 0: no hang is restarted."""
    drain_laggards: Annotated[float, Meta(ge=0, le=FACTOR_MAX)] = 0.0
    """A node is drained if a worker of it makes each step so many times as long; 0 for never."""

    def __post_init__(self) -> None:
        """Refuse an empty range. Raises `SchemaError`."""
        if self.nodes_min > self.nodes_max:
            raise SchemaError(f"nodes_min is {self.nodes_min}, more than nodes_max, {self.nodes_max}")


class HangKind(StrEnum):
    """What is wrong with the worker that others wait for."""

    ABSENT = "absent"
    """It is behind in the sequence, and nothing shows what it does."""
    STUCK = "stuck"
    """Its stack stands still, it uses no CPU, and what it reads and writes does not move."""
    BUSY = "busy"
    """It does something else, such as an evaluation: the others wait for it."""
    MISMATCHED = "mismatched"
    """It waits in another collective than the others of its group, or in one of another size or type."""
    NETWORK = "network"
    """All of a group wait in the same collective, and it completes for none."""


class Ended(Strict, frozen=True):
    """A worker that exited with 0 while its round was on."""

    rank: Count
    age_s: Seconds
    """How long before this message."""


class Killed(Strict, frozen=True):
    """Workers of a node that had not ended when the time that they had to save their state was over."""

    ranks: Annotated[tuple[Count, ...], Meta(min_length=1, max_length=CONSEQUENCES_MAX)]
    """The first few of them."""
    count: Annotated[int, Meta(ge=1, le=WORKERS_MAX)]
    """The number of all of them."""
    after_s: Seconds
    """How long they had."""


class SecondaryFailure(Strict, frozen=True):
    """A worker that failed after another one had: because of it, or with the same error."""

    node: Name
    rank: Count
    exit_code: WorkerExit
    same_error: bool = False
    left: bool = False
    """It left its round because a collective failed, and its process has not ended."""


class EarlyEnd(Strict, frozen=True):
    """A worker that had exited with 0 when another one failed."""

    node: Name
    rank: Count
    before_s: Seconds
    """How long before that failure."""


class NodeOffer(Strict, frozen=True):
    """What one node brings into a run, fixed for the life of its process."""

    host: Address
    """The host's own name, for people and for the order of new nodes; never used to connect."""
    host_id: Name
    """Equal on two nodes exactly if they reach each other over loopback: the boot id and the network namespace."""
    workers: Annotated[int, Meta(ge=1, le=WORKERS_MAX)]
    """The size of its local worker group."""
    role: Name
    topology: Annotated[str, printable(128)]
    """Nodes with equal or neighbouring keys get neighbouring ranks; empty if unknown."""
    group_rank: Count | None
    """The group rank that its user asks for; granted as far as others do not ask for the same."""
    advertise_address: Address | None
    """The address that its user wants others to reach it at."""
    routable_address: Address | None
    """Its own guess at such an address, used only where the coordinator has seen none, or a proxy's."""
    probe_port: Port
    """The port at which it answers with its node id, so that others can find out whether an address leads to it."""
    join_timeout_s: Seconds
    """How long it is willing to wait for a round."""
    stop_timeout_s: Seconds
    """How long its workers get to end after SIGTERM at most, before SIGKILL."""
    log_dir: Annotated[str, printable(LOG_MAX)] = ""
    """The folder on its host with the logs of this job, in RUN/round_N/RANK below it; empty if it keeps none, or it is
    not known."""


class Follower(Strict, frozen=True):
    """A worker that failed after another one of its node had."""

    rank: Count
    exit_code: WorkerExit
    same_error: bool = False
    """It failed with the same error, so the other failure is not its cause."""
    left: bool = False
    """It left its round because a collective failed, and its process has not ended."""


class Failure(Strict, frozen=True):
    """The first worker of a node's group that failed in this round."""

    rank: Count
    local_rank: Count
    exit_code: WorkerExit
    pid: Pid
    """Its process id; 0 if it was never started."""
    message: Sentence
    """What the node found out beyond the code, such as why the process could not be started or who killed it."""
    error: Sentence
    """The exception that ended it, in one line; empty if there was none, or it is not known."""
    last_lines: Annotated[tuple[Line, ...], Meta(max_length=LAST_LINES_MAX)]
    """The end of its traceback, or of its output on stderr."""
    followers: Annotated[tuple[Follower, ...], Meta(max_length=CONSEQUENCES_MAX)]
    """The first few workers of the node that failed later, and were not ended by it."""
    age_s: Seconds
    """How long before this message it was seen: two hosts' clocks are never compared."""
    log: Annotated[str, printable(LOG_MAX)] = ""
    """The file with all that it wrote to stderr, on its host; empty if there is none, or it is not known."""
    hang: HangKind | None = None
    """Set if it has not ended: all others waited for it, `message` says where, and `last_lines` is its stack."""
    hang_ranks: Annotated[tuple[Count, ...], Meta(max_length=CONSEQUENCES_MAX)] = ()
    """The first few ranks that hung, if there are several, such as those of both sides that wait at different places;
    `rank` is the first of them."""
    left: bool = False
    """It left its round because a collective failed, and its process has not ended."""
    final: bool = False
    """No restart mends its error, by the worker's own word: the run ends."""


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
    """The number of all workers that are known to have failed later."""
    same_error_count: Count = 0
    """The number of these that failed with the same error."""
    early: Annotated[tuple[EarlyEnd, ...], Meta(max_length=CONSEQUENCES_MAX)] = ()
    """The first workers of the round that had exited with 0 before it failed."""
    step: Step | None = None
    """The furthest step that any worker had reported."""
    stragglers: Annotated[tuple[Straggler, ...], Meta(max_length=CONSEQUENCES_MAX)] = ()
    """The first few workers that had not reported it, the furthest behind first."""


SECTION_NAME_MAX = 16
"""The length of a name: two words of a worker's slot."""


class Section(Strict, frozen=True):
    """The section that ends last by its limit, of those that a node's workers are in."""

    name: Annotated[str, printable(SECTION_NAME_MAX, least=1)]
    limit_s: Seconds
    """The longest time that it may take, as the script has set it."""
    age_s: Seconds
    """How long before this message it was begun."""
    local_rank: LocalRank
    """The worker that is in it."""


class ColdCause(StrEnum):
    """What kept workers from being forked from the parent interpreter."""

    COMMAND = "command"
    """The command line: it begins with no Python that can be a parent."""
    IMPORT = "import"
    """A module of `--preload` that cannot be imported."""
    PROCESS = "process"
    """A module that starts a process or a thread, which forks lose."""
    GPU = "gpu"
    """A module that opens CUDA or ROCm, which forks cannot use."""
    PARENT = "parent"
    """The parent interpreter: it could not be started, was too slow, did not fork or has ended."""


class WhyCold(Strict, frozen=True):
    """Why workers that were to be forked are cold."""

    cause: ColdCause
    text: Sentence


class WorkerStarts(Strict, frozen=True):
    """The workers of a node in its round, by the way in which each was begun."""

    in_place: Count
    """They were in the round before, as the same processes."""
    warm: Count
    """They were forked from the parent interpreter."""
    cold: Count
    why_not: Sentence = ""
    """Why workers that could have stayed did not; empty if they did, never could have, or were killed."""
    why_cold: WhyCold | None = None
    """Why some are cold though `--preload` names modules; None if none is."""


class Observed(Strict, frozen=True, tag=True):
    """The whole changing state of a node."""

    run: Annotated[str, printable(128)]
    """The run that `round` belongs to; empty before the first."""
    round: Counter
    """The last round it was given; 0 before the first."""
    phase: Phase
    port: Port
    """A port it holds reserved for MASTER_PORT, should it get group rank 0 of the next round."""
    leaving: bool
    """Whether its user asked it to leave, or it has given up and stays only to write to the disk."""
    failure: Failure | None
    heard_s: Seconds
    """How long ago it last heard the coordinator in this session. This shows the coordinator how late its own messages
    arrive."""
    beat: bool
    """A heartbeat: the coordinator answers it even if nothing has changed, so that each side knows that the other
    lives."""
    steps: Annotated[tuple[Step | None, ...], Meta(max_length=WORKERS_MAX)] = ()
    """The last step that each worker of the round has reported, by local rank. All are None if none has reported any,
    but one has announced that it will; empty if there is no sign of steps."""
    step_age_s: Seconds | None = None
    """How long before this message the newest of these steps was done: two hosts' clocks are never compared."""
    idle_s: Seconds = 0.0
    """How long before this message the last of its workers was gone, or the node began if it has had none; 0 while any
    may live."""
    ended: Annotated[tuple[Ended, ...], Meta(max_length=CONSEQUENCES_MAX)] = ()
    """The first workers of the round that exited with 0 before they were asked to end. They are sent with the next
    message that has another reason: they matter only when a round is judged, and each node sends one before that."""
    killed: Killed | None = None
    """Those of its workers in the round that were killed before they had saved their state, if any were."""
    kept: Holding | None = None
    """The training state of this run that it keeps in memory; None if it keeps none. Like `ended`, a change of it is
    sent with the next message that has another reason, but for a restore that has failed."""
    section: Section | None = None
    """The section that its workers are in; None if in none. It is sent with the next heartbeat, as steps are."""
    begun: WorkerStarts | None = None
    """How its workers of the round were begun; None before that, or if all are cold and could not be otherwise."""
    pids: Annotated[tuple[Pid, ...], Meta(max_length=WORKERS_MAX)] = ()
    """The process of each worker of the round that lives, by local rank, and 0 for one that has ended; empty if none
    is started. A change of it is sent with the next message that has another reason."""
    held_up: Sentence = ""
    """What is in the way of the end of the round on this node when its workers are dead; empty if nothing is."""


class Join(Strict, frozen=True, tag=True):
    """The first message of a session: who the node is, beside its first observed state."""

    version: Annotated[int, Meta(ge=0, le=COUNTER_MAX)]
    job: Name
    node: Name
    incarnation: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    """One life of a nodeclient process. If two have the same node id, the greater one is the younger."""
    spec: JobSpec
    offer: NodeOffer
    observed: Observed
    release: Annotated[str, printable(64)] = ""
    """The release of nodeclient, as printed by its `--version`; empty if not known."""
    age_s: Seconds | None = None
    """How long before this message the nodeclient process began; None if not known. It distinguishes a node that comes
    when a run has just ended from one that was started to begin another, without comparing clocks."""
    command: Annotated[str, printable(2 * DIGEST_LETTERS)] = ""
    """What it starts its workers with, to be compared with that of others: a digest of the script and then one of the
    whole command, each of `DIGEST_LETTERS`; empty if not known."""
    keeper: Keeper | None = None
    """How others get at the training state that it keeps; None if it cannot keep any."""
    awaits_own: bool = False
    """Whether it looks for a coordinator that knows its run: any other one is to refuse it for now."""


class Assignment(Strict, frozen=True):
    """One node's part of a round: its own ranks and the master, so that its size does not depend on the others."""

    group_rank: Count
    group_world_size: Count
    first_rank: Count
    """Its workers have the ranks from here upward, in the order of their local ranks."""
    world_size: Count
    first_role_rank: Count
    role_world_size: Count
    master_node: Name
    master_address: Address
    master_port: Port
    master_probe_port: Port
    """The port at which that node answers with its id: each node checks that it gets there before it starts its
    workers."""
    restarts_used: Counter
    max_restarts: Counter


class Outcome(Strict, frozen=True):
    """How the run ended for a node: the nodeclient logs it, and exits with its code."""

    result: Result
    exit_code: Annotated[int, Meta(ge=0, le=255)]
    summary: Text


class Desired(Strict, frozen=True, tag=True):
    """What the coordinator wants of a node, whole."""

    run: Annotated[str, printable(128)]
    round: Counter
    """The round of the goal; with `wait`, the last one of the run."""
    goal: Goal
    reason: Text
    """Why, in words for a person."""
    wait_s: Seconds | None
    """How long a `wait` takes at most, until a round forms or the node is released; None if for ever, or for another
    goal."""
    heartbeat_s: Grant
    lease_s: Grant
    """Granted to the node: it sends a heartbeat at least every `heartbeat_s`, and is lost after `lease_s` of
    silence."""
    outage_grace_s: Seconds
    """Also granted: a node that is cut off from the coordinator for longer stops its workers, since it may have been
    replaced."""
    planned: bool
    """Whether a `stop` or `exit` comes while all is well, so that workers get the time to save their state."""
    assignment: Assignment | None
    """Set for `run`, and only there."""
    outcome: Outcome | None
    """Set for `exit`, and only there."""
    report: Report | None
    """Why the last round failed: with `exit`, and with `run` until the node's workers are running."""
    remark: Sentence = ""
    """A warning for the user of the node, if any: this run begins a job anew which had succeeded, or another node was
    started with another command."""
    resume: Resume | None = None
    """What the workers of the round resume from: with `run`, until the node reports that it has that, or workers do
    steps. None takes nothing back. Only if none was sent since the round was given do they resume from nothing."""
    protected: Annotated[tuple[KeptStep, ...], Meta(max_length=PROTECTED_MAX)] | None = None
    """The steps of which the node must not overwrite any part. None changes nothing, since they are not known yet."""
    halt: Halt | None = None
    """The step that all workers keep before a planned `stop`; None if each keeps the last one that it has done."""
    persist: PersistOrder | None = None
    """What the node writes of a step to the disk; None if nothing."""
    copies: Annotated[tuple[KeptCopy, ...], Meta(max_length=COPIES_MAX)] = ()
    """The copies of other nodes' state that the node is to get and does not have yet. It gets no others any more."""
    alike: bool | None = None
    """Whether all ranks had the same state after the first step of the round; None before that is known."""

    def __post_init__(self) -> None:
        """Check that the goal has the fields that belong to it. Raises `SchemaError`."""
        if (self.assignment is not None) != (self.goal is Goal.RUN):
            raise SchemaError(f"assignment belongs to the goal {Goal.RUN} and only there, not to {self.goal}")
        if (self.outcome is not None) != (self.goal is Goal.EXIT):
            raise SchemaError(f"outcome belongs to the goal {Goal.EXIT} and only there, not to {self.goal}")


class Degraded(Strict, frozen=True, tag=True):
    """The last `Desired` stands, since the coordinator lives but cannot decide anything now.

    It answers heartbeats while the store fails: the coordinator might forget any decision.
    """

    reason: Text


class Refused(Strict, frozen=True, tag=True):
    """The last message of a session that the coordinator refuses."""

    code: RefusalCode
    message: Text
    retry: bool
    """Whether the same node may be let in later."""


Message = (
    Join | Observed | Desired | Degraded | Refused | ReadLog | LogChunk | AskStacks | Stacks | AskArrivals | Arrivals
)
