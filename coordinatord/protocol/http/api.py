"""The main requests and answers of the HTTP API, as records.

`msgspec` encodes them as JSON or msgpack, in the order of their fields, and `schema.check` parses them. A record named
`...Answer` is the whole body of an answer, and one named `...Status` shows something at that moment. Ages and durations
are in seconds up to that moment.

An older release may lack a field with a default, and a reader then uses the default. A newer release may have more
fields, states and kinds. Dashboards, the live page and people with curl rely on the names: none changes its meaning,
and none is removed.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

from msgspec import Meta, Struct

from coordinatord.protocol.fields import LINE_MAX, Name, Sentence
from coordinatord.protocol.schema import LeftOut, Strict, printable
from coordinatord.protocol.text import NAMES_MAX, TEXT_MAX

ENDED = frozenset({"succeeded", "failed", "stopped", "left"})
"""The final states of a run."""

NUMBER_MAX = 2**62
"""The limit of steps, seconds and times: no training job has a greater number."""

ITEMS_MAX = 1_000_000
"""The limit of a list: as many as there can be ranks, which are the most numerous."""

Number = Annotated[float, Meta(ge=-NUMBER_MAX, le=NUMBER_MAX)]
Whole = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
Item = TypeVar("Item")
Items = Annotated[tuple[Item, ...], Meta(max_length=ITEMS_MAX)]
"""A list in an answer."""
AnyText = Annotated[str, printable(4_096)]
"""A printable name or sentence; no reason of a coordinator is longer."""
AnyLine = Annotated[str, printable(LINE_MAX)]
"""A line that a worker wrote."""


class CoordinatorStatus(Struct, frozen=True, kw_only=True):
    """A coordinator that shares its store with others."""

    host: AnyText
    endpoint: AnyText
    """HOST:PORT, where nodes reach it."""
    since: Number
    """When it began to lead or to stand by, in seconds since 1970 by its host's clock."""


class SharedStatus(Struct, frozen=True, kw_only=True):
    """The coordinators that share a store, as the leader sees them."""

    leader: CoordinatorStatus
    standbys: Items[CoordinatorStatus] = ()
    """The standbys of the leader's last poll."""
    lease_s: Number
    """The remaining time of the leader's lease."""
    problem: AnyText = ""
    """Why the standbys are not known now; empty if they are."""


class KeptStatus(Struct, frozen=True, kw_only=True):
    """The kept state of a job, and the step that its round resumed from."""

    step: Whole | None = None
    """The newest whole step; None if there is none at present. It may be an old one: state that is the same on all
    workers is saved only when the round breaks."""
    resumed: Whole | None = None
    """The step that the current or last round resumed from; None without one."""
    resumed_from: AnyText = ""
    """The source of that step, in words: `node gpu3's memory`, or `disk`; empty without one."""
    redone: Whole | None = None
    """How many steps were redone after that; None if not known."""
    redone_at_least: bool = False
    """Whether it may be more: all nodes of the round before were lost, so their last steps are not known."""
    interval_steps: Whole | None = None
    """The number of steps between two saves of state that no other host has; None without such state."""
    save_s: Number | None = None
    """How long the last save took on the slowest node."""
    used_bytes: Whole = 0
    """The memory of the kept state on all nodes."""
    skipped: Whole = 0
    """How many saves were skipped because no place was free."""
    copied: Whole | None = None
    """The newest step that survives the loss of any one host, since state that only one host had was copied to another;
    None if there is none at present."""
    copy_problem: AnyText = ""
    """Why state that only one host has is not copied; empty if it is, soon will be, or there is one host."""
    unkept: AnyText = ""
    """State that training needs but does not keep, such as that of an optimizer not given to `ctx.keep`; else empty."""
    pageable: AnyText = ""
    """A node whose saves from a GPU are slow, since their memory is not page-locked, and why; empty without one."""
    unstepped: AnyText = ""
    """Which ranks train and never call `ctx.step`, so that no step is kept; empty without any."""
    disk_step: Whole | None = None
    """The newest whole step of this run on the disk, as nodes last found it; None without one."""
    disk_writing: Whole | None = None
    """The step that is being written there, if any."""
    disk_problem: AnyText = ""
    """Why the last attempt to write a step failed, or which step is gone; empty if neither is so."""


class NodeKeptStatus(Struct, frozen=True, kw_only=True):
    """The state that one node keeps."""

    used_bytes: Whole = 0
    limit_bytes: Whole | None = None
    """The limit of its memory for kept state; None if not known."""
    interval_steps: Whole | None = None
    save_s: Number | None = None
    skipped: Whole = 0
    restoring: AnyText = "nothing"
    """The progress of restoring the step to resume from: `nothing`, `fetching`, `ready` or `failed`."""
    problem: AnyText = ""
    """Why its last save or restore failed, if it did."""
    pageable: AnyText = ""
    """Why saves from its GPUs are slow, into memory that is not page-locked; empty if they are not."""
    copied_to: AnyText = ""
    """The node with a copy of the state that only this node keeps; empty if none has one."""
    copied_step: Whole | None = None
    """The step of that copy."""


class LateStatus(Struct, frozen=True, kw_only=True):
    """The lateness of that worker of a node which most often arrives last in collectives."""

    rank: Whole
    last: Number
    """The share of the collectives in which it arrives last, 0 to 1."""
    late_s: Number
    """Its usual lateness of a step; 0 if it comes before the worker in the middle."""


class LaggardStatus(Struct, frozen=True, kw_only=True):
    """The worker that all others wait for in most collectives, or a node of such workers."""

    rank: Whole | None
    """None if several workers of the node take turns."""
    node: AnyText
    last: Number
    """The share of the collectives in which it arrives last, 0 to 1."""
    late_s: Number
    """Its usual lateness of a step."""
    step_s: Number | None
    """The duration of a step; None if no worker reports steps, and then `late_s` is per collective."""
    sentence: AnyText
    """The same in words."""


class WorkerStartsStatus(Struct, frozen=True, kw_only=True):
    """The workers of a node or round, counted by the way they were started."""

    in_place: Whole
    """They continue as the same processes of the last round."""
    warm: Whole
    """They were forked from the parent interpreter of `--preload`."""
    cold: Whole
    why_not: AnyText
    """Why workers did not continue in place; empty if they did, could never have, or were killed. For a round, it is
    that of the first such node."""
    why_cold: AnyText = ""
    """Why workers were not forked; for a round, on the first such node. Empty if they were, or without `--preload`."""


class OtherFailureStatus(Struct, frozen=True, kw_only=True):
    """A worker that failed after the first one."""

    node: AnyText
    rank: Whole
    exit_code: Whole
    """The exit code as in a shell: 128 + n for signal n."""
    how: AnyText = ""
    """The exit code in words."""
    same_error: bool = False


class EarlyEndStatus(Struct, frozen=True, kw_only=True):
    """A worker that had ended with 0, `before_s` seconds before another one failed."""

    node: AnyText
    rank: Whole
    before_s: Number


class StragglerStatus(Struct, frozen=True, kw_only=True):
    """A worker whose last step is behind those of others."""

    node: AnyText
    rank: Whole
    step: Whole


class FailureStatus(Struct, frozen=True, kw_only=True):
    """Why the last failed round failed."""

    round: Whole
    """The round that failed."""
    nodes: Whole
    """How many took part in the round."""
    node: AnyText
    """The node of the worker that failed first."""
    host: AnyText
    """The host of that node."""
    rank: Whole
    """The global rank of that worker."""
    local_rank: Whole
    """Its rank on its host."""
    pid: Whole | None
    """Its process id; None if it was never started."""
    exit_code: Whole
    """The exit code as in a shell: 128 + n for signal n."""
    how: AnyText
    """The exit code in words, which distinguishes 134 from SIGABRT; for a worker that hung, the kind of the hang;
    `diverged` for replicas."""
    cause: AnyText = ""
    """The class of the cause: `user_code`, `host_memory`, `gpu_memory`, `signal`, `preempted`, `hang`,
    `divergence`, `device`, `network`, `disk` or `unknown`."""
    hang: AnyText = ""
    """Set if the worker had not ended: `absent`, `stuck`, `busy`, `mismatched` or `network`."""
    hang_ranks: Items[Whole] = ()
    """The first few ranks that hung, if there are several."""
    message: AnyText
    """The node's diagnosis beyond the exit code."""
    error: AnyText
    """The exception that ended the worker, in one line; empty if there was none, or it is not known."""
    last_lines: Items[AnyLine] = ()
    """The traceback, and below it what came before; or the end of stderr; or the stack of a worker that hung."""
    age_s: Number
    """How long ago it failed."""
    consequences: Items[OtherFailureStatus] = ()
    """The first workers that failed later."""
    consequences_count: Whole
    """The number of all workers that failed later, as far as known."""
    same_error_count: Whole = 0
    """The number of these that failed with the same error."""
    early: Items[EarlyEndStatus] = ()
    """The first workers that had exited with 0 by then."""
    early_lines: Items[AnyLine] | None = None
    """The end of the stderr of the first of these; null if it is not known."""
    early_log: AnyText | None = None
    """The file with its stderr, on its host."""
    step: Whole | None = None
    """The highest step that any worker had reported."""
    stragglers: Items[StragglerStatus] = ()
    """The first workers that had not reported it, the slowest first."""
    log: AnyText | None = None
    """The file with the worker's stderr, on its host."""
    hint: AnyText = ""
    """The remedy; empty if the cause is not well known."""
    left_early: AnyText = ""
    """A sentence that names the workers that had exited with 0, if the worker failed for lack of them; else empty."""
    shared_by: AnyText = ""
    """`all 4 ranks`, or how many, if several failed with the same error; else empty."""
    before: AnyText = ""
    """A sentence about workers that had ended with 0 before, whether or not that matters; empty if none had."""
    behind: AnyText = ""
    """A sentence about workers that were behind, if a worker waited for others; otherwise empty."""
    then: AnyText = ""
    """A sentence about workers that failed too; empty if none did."""
    excused_by: AnyText = ""
    """The lost node that may have caused the failure, which then is not charged; empty if there is none."""


class HealthAnswer(Struct, frozen=True, kw_only=True):
    """`GET /healthz`: whether the coordinator works."""

    status: AnyText
    """`ok`, or `cannot record`, when the coordinator decides nothing and the HTTP status is 503."""
    reason: AnyText
    """Why nothing can be recorded, or how many jobs have only silent nodes; empty if all is well."""
    version: AnyText
    """The release of the coordinator."""
    jobs: Whole
    sessions: Whole
    """The number of connected nodes."""
    insecure: bool = False
    """Whether the coordinator serves everybody, in the clear."""


class LivenessAnswer(Struct, frozen=True, kw_only=True):
    """`GET /healthz` without a token: only what the HTTP status shows."""

    status: AnyText


class StandbyAnswer(Struct, frozen=True, kw_only=True):
    """`GET /healthz` of a standby, for callers with a token."""

    status: AnyText
    """`standby`, or `nobody leads` with the HTTP status 503, and a `reason` if known."""
    reason: AnyText


class ErrorAnswer(Struct, frozen=True, kw_only=True):
    """The answer to a request that is rejected or fails, with a status of 400 or more, or is for the leader (307)."""

    error: AnyText
    """One word for programs, such as `unknown_job`."""
    message: AnyText
    """One sentence for people."""


class AdminBody(Strict, frozen=True):
    """The body of an operator's request; path and method name the request."""

    by: Name
    """The name of the person who asks, which nobody checks."""
    reason: Sentence = ""
    dry_run: bool = False
    """Whether to answer without changing anything."""


class StopBody(AdminBody, frozen=True):
    """The body of a stop."""

    no_persist: bool = False
    """Whether a run that is about to end stops waiting for its last step to be written to the disk."""


DRAINED_BEFORE_MAX = 500
"""The most names in `DrainBody.after`: they fit into the body of a request."""


class DrainBody(AdminBody, frozen=True):
    """The body of a drain."""

    ahead: bool = False
    """Whether to allow a name that no node has yet."""
    after: Annotated[tuple[Name, ...], Meta(max_length=DRAINED_BEFORE_MAX)] = ()
    """Other names that a dry run assumes are drained before this one."""


class PageLinkBody(Strict, frozen=True):
    """The body of a request for a link to the live page: it is empty."""


class PageLinkAnswer(Struct, frozen=True, kw_only=True):
    """A link to the live page."""

    code: AnyText
    """The code that opens one browser session, as `/#enter=CODE`; empty if no token is needed."""
    valid_s: Number
    """How long the link is valid."""
    role: AnyText
    """The role of the token, which is also the page's."""


class PageSessionBody(Strict, frozen=True):
    """The body of a browser's request for a session."""

    code: Annotated[str, printable(64, least=1)]


class PageSessionAnswer(Struct, frozen=True, kw_only=True):
    """A browser's new session, which is in the header `Set-Cookie`."""

    token: AnyText
    """The name of the token whose rights the session has."""
    role: AnyText


class AdminAnswer(Struct, frozen=True, kw_only=True):
    """The result of an operator's request."""

    done: bool
    """False if nothing had to change, or for a dry run."""
    message: Annotated[str, Meta(max_length=TEXT_MAX * (NAMES_MAX + 2))]
    """One line; for a drain, one for each of the first few jobs, and one that counts the others."""


EventId = Annotated[str, Meta(pattern=r"^[!-~]+\Z", max_length=128)]
"""The id of an event, which fits into a header."""


class ApiEvent(Struct, frozen=True, kw_only=True):
    """An event of a job or of none."""

    id: EventId
    """An opaque id: a client sends it back as `Last-Event-ID` or `after`, and gets the events since."""
    number: Whole
    """Grows with each event of one coordinator; another coordinator may begin anew."""
    at: Number
    """The time in seconds since 1970 by the clock of the coordinator's host."""
    job: AnyText
    """Empty if the event concerns no job, or all."""
    run: AnyText
    kind: AnyText
    """One word for programs, such as `RoundFormed`."""
    what: AnyText
    """The kind for people, such as `round formed`."""
    round: Whole | None
    node: AnyText | None
    reason: AnyText


class EventsAnswer(Struct, frozen=True, kw_only=True):
    """`GET /v1/events` and `GET /v1/jobs/{job}/events`, oldest first."""

    job: AnyText | None
    """None for all jobs."""
    events: Items[ApiEvent]
    upto: EventId
    """The id of the last event that was read: a reader that continues after it misses nothing."""


class SecondsStatus(Struct, frozen=True, kw_only=True):
    """The time of a run or round, in seconds by activity."""

    training: Number = 0.0
    """Workers did new steps."""
    redone: Number = 0.0
    """Steps of an earlier round of the run were redone."""
    running: Number = 0.0
    """All workers ran, and whether they trained is not known."""
    stalled: Number = 0.0
    """No worker did a step for much longer than steps had taken."""
    silent: Number = 0.0
    """No node of the round was heard, so nothing is known of its workers."""
    waiting: Number = 0.0
    """Too few nodes for a round were there."""
    rendezvous: Number = 0.0
    """Enough nodes were ready, and the round waited for more."""
    starting: Number = 0.0
    """Nodes prepared, or workers started or had not done their first step."""
    detecting: Number = 0.0
    """The round was broken, before that was detected."""
    stopping: Number = 0.0
    """Workers saved their state and ended."""


class LedgerStatus(Struct, frozen=True, kw_only=True):
    """The time of a run so far."""

    seconds: SecondsStatus = SecondsStatus()
    total: Number = 0.0
    """The sum of `seconds`."""
    goodput: Number | None = None
    """The share of training without redone steps, 0 to 1; None if no step was ever reported."""


class ProgressStatus(Struct, frozen=True, kw_only=True):
    """The progress that workers report."""

    step: Whole | None = None
    """The last step that all workers have completed."""
    steps_per_s: Number | None = None
    """None if the round makes no steps at present."""
    reached: Whole | None = None
    """The highest step of earlier rounds of the run; None if they reported none."""
    idle_s: Number | None = None
    """The time since any worker's last step; None before the first step of the round, and without a round."""
    usual_s: Number | None = None
    """The duration of recent steps; None if not known."""


class RestartsStatus(Struct, frozen=True, kw_only=True):
    """The budget of restarts."""

    used: Whole
    max: Whole | None
    """None if torchrun's agents count them."""
    window_s: Number | None = None
    """The length of the window in which restarts are counted; None if all are."""


class MissingStatus(Struct, frozen=True, kw_only=True):
    """Nodes of the last round that are not back."""

    count: Whole = 0
    nodes: Items[AnyText] = ()
    """The first few of them."""


class LostStatus(Struct, frozen=True, kw_only=True):
    """A node that was lost and is not back."""

    node: AnyText
    host: AnyText
    reason: AnyText
    round: Whole
    """The round at that time, or the last one before."""
    lost_s: Number
    """How long ago."""


class RefusedStatus(Struct, frozen=True, kw_only=True):
    """A node that may not join for now, and asks again."""

    node: AnyText
    host: AnyText
    reason: AnyText
    refused_s: Number


class EarlierRunStatus(Struct, frozen=True, kw_only=True):
    """A run of the job before the present one."""

    run: AnyText
    state: AnyText
    """How it ended."""
    reason: AnyText
    step: Whole | None
    """The last step that all workers had completed; None if none was reported."""
    opened_s: Number
    """The duration of the run."""
    ended_s: Number
    """How long ago it ended."""
    goodput: Number | None
    exit_code: Whole
    """The exit code of its nodes, as in a shell."""


class NodeStatus(Struct, frozen=True, kw_only=True):
    """A node of a job."""

    node: AnyText
    host: AnyText
    address: AnyText
    state: AnyText
    """A member state. While a round is at work, a ready node is shown as `arrived`, or as `spare` if that round may not
    grow. A running one is shown as `starting` until its workers have done a step, if they report steps."""
    reason: AnyText
    drained: bool = False
    """Whether an operator wants it to leave."""
    group_rank: Whole | None = None
    """None outside a round."""
    ranks: Items[Whole] = ()
    last_seen_s: Number
    release: AnyText | None = None
    """The release of nodeclient; None if not known."""
    protocol: Whole | None = None
    """Its version of the protocol."""
    log_dir: AnyText | None = None
    """The folder on its host with the logs of this job, in RUN/round_N/RANK below it; None if none is known."""
    pids: Items[Whole] = ()
    """The process id of each of its workers by local rank, 0 for one that has ended; empty if not known or without
    workers."""
    steps: Items[Whole | None] = ()
    """The last step of each of its workers by local rank; empty if none reports any."""
    step_age_s: Number | None = None
    """The age of the newest of these steps."""
    behind: Whole = 0
    """How many steps its slowest worker is behind the fastest one; 0 if late reports may explain the difference."""
    kept: NodeKeptStatus | None = None
    """The training state that it keeps in memory; None if it keeps none."""
    late: LateStatus | None = None
    """The lateness of its latest worker; None if not known."""
    begun: WorkerStartsStatus | None = None
    """How its workers of the round were started; None before that, or if all are cold for lack of an alternative."""


class RoundStatus(Struct, frozen=True, kw_only=True):
    """One of the last rounds of a run; a field is None if not known, or before its event."""

    round: Whole
    nodes: Whole
    workers: Whole
    formed: AnyText | None
    """Why it was formed; the next two fields are why it was stopped, and why it ended."""
    stopped: AnyText | None
    ended: AnyText | None
    planned: bool
    """Whether it was stopped without an error."""
    charged: bool
    """Whether it counts against the budget of restarts."""
    formed_s: Number | None
    """How long ago it was formed; the next three fields likewise."""
    running_s: Number | None
    stopped_s: Number | None
    ended_s: Number | None
    seconds: SecondsStatus
    """The time since the end of the round before, by activity."""
    begun: WorkerStartsStatus | None = None
    """How its workers were started; None if all were cold for lack of an alternative, or not all were started."""


class PreflightNodeStatus(Struct, frozen=True, kw_only=True):
    """What a preflight has found about a node."""

    node: AnyText
    host: AnyText
    verdict: AnyText
    """`good`, `slow`, `wrong`, `bad link`, `no answer` or `cannot be told`."""
    gflops: Number | None
    """The speed of its matrix product in GFLOP/s; None if it has computed none."""
    mb_s: Number | None
    """The best bandwidth of a sum of vectors with another node, in millions of bytes a second; None if no sum came."""
    text: AnyText
    """The evidence for the verdict, in words that follow the name of the node."""


class PreflightStatus(Struct, frozen=True, kw_only=True):
    """A preflight: tests of nodes in pairs."""

    reason: AnyText
    """Who wanted it, and why."""
    is_over: bool
    stopped: AnyText
    """Why it ended before all was tested; empty if it did not."""
    nodes: Items[PreflightNodeStatus] = ()
    bad_links: Items[tuple[AnyText, ...]] = ()
    """Pairs of good nodes whose link to each other is bad."""


class JobStatus(Struct, frozen=True, kw_only=True):
    """`GET /v1/jobs/{job}`: the live or last run of a job."""

    job: AnyText
    run: AnyText
    state: AnyText
    """`forming`, `starting` (until the first step, if steps are reported), `running`, `stopping`; or how it ended:
    `succeeded`, `failed`, `stopped` or `left`."""
    health: AnyText = "well"
    """The health of the present round: `well`, or the problem."""
    reason: AnyText
    round: Whole
    """The number of the last round; 0 before the first."""
    opened_s: Number | None = None
    """The duration of the run so far, or until its end."""
    state_s: Number | None = None
    """The duration of its state."""
    exit_code: Whole | None = None
    """The exit code of its nodes, as in a shell; None before its end."""
    ledger: LedgerStatus = LedgerStatus()
    world_size: Whole
    """0 without a round."""
    begun: WorkerStartsStatus | None = None
    """How the workers of the present round were started; None in the same cases as in `rounds`."""
    progress: ProgressStatus = ProgressStatus()
    kept: KeptStatus | None = None
    """The training state that its nodes keep in memory; None if they keep none."""
    restarts: RestartsStatus
    spares: Whole = 0
    missing: MissingStatus = MissingStatus()
    lost: Items[LostStatus] = ()
    """The nodes of a live run that were lost in the last hour, the last one first."""
    refused: Items[RefusedStatus] = ()
    earlier: Items[EarlierRunStatus] = ()
    """The runs of the job before this one, the last one first."""
    failure: FailureStatus | None = None
    laggard: LaggardStatus | None = None
    """None if all workers are equally fast, or not known."""
    unseen: AnyText = ""
    """Why a hang would not be noticed: no worker shows where it stands. Empty if one would be, or it is not known."""
    nodes: Items[NodeStatus] = ()
    """The nodes of the round first, by rank."""
    rounds: Items[RoundStatus] = ()
    """The last rounds, oldest first; left out in a list of jobs."""
    preflight: PreflightStatus | None = None
    """The last preflight; None if there was none since the coordinator was started. Left out in a list of jobs."""

    @property
    def ended(self) -> bool:
        """Whether the run is over."""
        return self.state in ENDED


class DrainedStatus(Struct, frozen=True, kw_only=True):
    """An operator's drain of `node`, a node or a host: no round includes it."""

    node: AnyText
    reason: AnyText


class ChargeStatus(Struct, frozen=True, kw_only=True):
    """A failed round that a host is charged with."""

    fault: AnyText
    """`device`, `hang`, `disk`, `lost` or `crash`."""
    error: AnyText
    age_s: Number


class HostStatus(Struct, frozen=True, kw_only=True):
    """A host that is charged with failed rounds, or quarantined: rounds do without it if they can."""

    host: AnyText
    quarantined: AnyText
    """Why it is quarantined; empty if it is not."""
    weight: Number
    """The sum of its charges."""
    charges: Items[ChargeStatus]


class JobsAnswer(Struct, frozen=True, kw_only=True):
    """The answer to `GET /v1/jobs`."""

    jobs: Items[JobStatus]
    drained: Items[DrainedStatus] = ()
    charged: Items[HostStatus] = ()
    insecure: bool = False
    """Whether the coordinator serves everybody, in the clear."""
    shared: SharedStatus | None = None
    """The leader and the standbys; None without a shared store."""


IN_LIST: LeftOut = {JobStatus: frozenset({"rounds", "preflight"})}
"""The fields that a list of jobs leaves out."""
