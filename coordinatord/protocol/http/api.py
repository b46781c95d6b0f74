"""The requests and answers of the HTTP API, as records: the server writes answers, the command lines read them.

`msgspec` turns them into JSON or msgpack, and `schema.check` reads that. The order of the fields is that of the JSON.
Names end in `Answer` where a record is the whole body of an answer, and in `Status` where it shows something as it is
at the moment. Ages and durations are in seconds and count up to that moment.

An older release may lack fields that have a default; a reader then takes the default. A newer one may have more
fields, states and kinds than there are here. Dashboards, the live page and people with curl rely on the names: none
changes its meaning, and none goes away.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from coordinatord.protocol.fields import LINE_MAX, Name, Sentence
from coordinatord.protocol.schema import Strict, Without, printable
from coordinatord.protocol.text import NAMES_MAX, TEXT_MAX

ENDED = frozenset({"succeeded", "failed", "stopped", "left"})
"""States of a job that it does not leave by itself."""


NUMBER_MAX = 2**62
"""The limit of steps, seconds and times: no training job has a greater number."""

ITEMS_MAX = 1_000_000
"""The limit of a list: ranks are the most numerous, and there are no more of them."""

Number = Annotated[float, Meta(ge=-NUMBER_MAX, le=NUMBER_MAX)]
Whole = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
AnyText = Annotated[str, printable(4_096)]
"""A name or a sentence, fit for a terminal; no reason of a coordinator is longer."""
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
    """The coordinators that share a store, by the account of the one that leads."""

    leader: CoordinatorStatus
    standbys: Annotated[tuple[CoordinatorStatus, ...], Meta(max_length=ITEMS_MAX)] = ()
    """Those that were there when it looked last."""
    lease_s: Number
    """How long the leader's lease lasts yet."""
    problem: AnyText = ""
    """Why it is not known who stands by now; empty if it is."""


class KeptStatus(Struct, frozen=True, kw_only=True):
    """The state that the nodes of a job keep, and what its round resumed from."""

    step: Whole | None = None
    """The newest step of which everything is held; None if there is none at present. State that all workers have alike
    is saved when the round breaks."""
    resumed: Whole | None = None
    """The step that the current or last round resumed from; None if it resumed from none."""
    resumed_from: AnyText = ""
    """Where that step was taken from, in words: `node gpu3's memory`, or `disk`; empty if it resumed from none."""
    redone: Whole | None = None
    """How many steps were done again because of that; None if not known."""
    interval_steps: Whole | None = None
    """How many steps lie between two saves of what no other host has; None if there is no such state."""
    save_s: Number | None = None
    """How long the last save took on the slowest node."""
    used_bytes: Whole = 0
    """How much memory the kept state takes on all nodes."""
    skipped: Whole = 0
    """How many saves were left out because no place was free."""
    copied: Whole | None = None
    """The newest step that outlives the loss of any one host, since what one host alone has is copied to another; None
    if there is none at present."""
    copy_problem: AnyText = ""
    """Why state that only one host has is not copied; empty if it is, is about to be, or there is one host."""
    unkept: AnyText = ""
    """What training depends on and nobody keeps, as the state of an optimizer that was not given to `ctx.keep`; empty
    if nothing like that was noticed."""
    disk_step: Whole | None = None
    """The newest step of this run that is whole on the disk; None if there is none, or none is written."""
    disk_writing: Whole | None = None
    """The step that is being written there; None at present."""
    disk_problem: AnyText = ""
    """Why the last attempt to write a step failed; empty if it did not."""


class NodeKeptStatus(Struct, frozen=True, kw_only=True):
    """The state that one node keeps."""

    used_bytes: Whole = 0
    limit_bytes: Whole | None = None
    """How much memory it may use; None if not known."""
    interval_steps: Whole | None = None
    save_s: Number | None = None
    skipped: Whole = 0
    restoring: AnyText = "nothing"
    """How far it has come with what its workers resume from: `nothing`, `fetching`, `ready` or `failed`."""
    problem: AnyText = ""
    """Why its last save or restore failed, if it did."""
    copied_to: AnyText = ""
    """The node that has a copy of what this node alone keeps; empty if none has."""
    copied_step: Whole | None = None
    """The step of that copy."""


class LateStatus(Struct, frozen=True, kw_only=True):
    """How late one worker of a node is: the one that arrives last in collectives most often."""

    rank: Whole
    last: Number
    """The share of the collectives in which it arrives last, 0 to 1."""
    late_s: Number
    """Its usual lateness of a step; 0 if it comes before the worker in the middle."""


class LaggardStatus(Struct, frozen=True, kw_only=True):
    """The worker that arrives last in most collectives, so that all others wait for it; or a node of such workers."""

    rank: Whole | None
    """None if the workers of the node take turns in arriving last."""
    node: AnyText
    last: Number
    """The share of the collectives in which it arrives last, 0 to 1."""
    late_s: Number
    """Its usual lateness of a step."""
    step_s: Number | None
    """How long a step takes; None if no worker reports steps. Then `late_s` is per collective."""
    sentence: AnyText
    """The same in words."""


class WorkerStartsStatus(Struct, frozen=True, kw_only=True):
    """The workers of a node or round, by the way in which each was begun."""

    in_place: Whole
    """They were in the round before, as the same processes."""
    warm: Whole
    """They were forked from the parent interpreter of `--preload`."""
    cold: Whole
    why_not: AnyText
    """Why workers that could have stayed were not begun in place; empty if they were, never could have been, or were
    killed. For a round, it begins with the first node of which that is true."""
    why_cold: AnyText = ""
    """Why workers were not forked from the parent interpreter, in the same way; empty if they were, or there is no
    `--preload`."""


class OtherFailureStatus(Struct, frozen=True, kw_only=True):
    """A worker that failed after the first one."""

    node: AnyText
    rank: Whole
    exit_code: Whole
    """The exit code as a shell has it: 128 + n for signal n."""
    how: AnyText = ""
    """The exit code in words."""
    same_error: bool = False


class EarlyEndStatus(Struct, frozen=True, kw_only=True):
    """A worker that had ended with 0 when another one failed."""

    node: AnyText
    rank: Whole
    before_s: Number


class StragglerStatus(Struct, frozen=True, kw_only=True):
    """A worker whose last step is behind those of others."""

    node: AnyText
    rank: Whole
    step: Whole


class FailureStatus(Struct, frozen=True, kw_only=True):
    """Why the last round that failed did so."""

    round: Whole
    nodes: Whole
    """How many took part in the round."""
    node: AnyText
    host: AnyText
    rank: Whole
    local_rank: Whole
    pid: Whole | None
    """None if the worker was never started."""
    exit_code: Whole
    """The exit code as a shell has it: 128 + n for signal n."""
    how: AnyText
    """The exit code in words, which distinguishes 134 from SIGABRT; of a worker that hung, the kind of the hang."""
    hang: AnyText = ""
    """Set if the worker had not ended: `absent`, `stuck`, `busy`, `mismatched` or `network`."""
    hang_ranks: Annotated[tuple[Whole, ...], Meta(max_length=ITEMS_MAX)] = ()
    """The first few ranks that hung, if there are several, such as those that wait at different places."""
    message: AnyText
    """What the node found out beyond the code."""
    error: AnyText
    """The exception that ended the worker, in one line; empty if there was none, or it is not known."""
    last_lines: Annotated[tuple[AnyLine, ...], Meta(max_length=ITEMS_MAX)] = ()
    """The end of the traceback, or of the worker's output on stderr; of a worker that hung, its stack."""
    age_s: Number
    consequences: Annotated[tuple[OtherFailureStatus, ...], Meta(max_length=ITEMS_MAX)] = ()
    """The first workers that failed later."""
    consequences_count: Whole
    """The number of all workers that are known to have failed later."""
    same_error_count: Whole = 0
    """The number of these that failed with the same error."""
    early: Annotated[tuple[EarlyEndStatus, ...], Meta(max_length=ITEMS_MAX)] = ()
    step: Whole | None = None
    """The furthest step that any worker had reported."""
    stragglers: Annotated[tuple[StragglerStatus, ...], Meta(max_length=ITEMS_MAX)] = ()
    log: AnyText | None = None
    """The file with all that the worker wrote to stderr, on its host."""
    hint: AnyText = ""
    """What to do about it; empty if the cause is not a well-known one."""
    before: AnyText = ""
    """The workers that had ended before, as a sentence; empty if none had."""
    behind: AnyText = ""
    """The workers that were behind, as a sentence, if a worker waited for others; otherwise empty."""
    then: AnyText = ""
    """The workers that failed too, as a sentence; empty if none did."""


class HealthAnswer(Struct, frozen=True, kw_only=True):
    """`GET /healthz`: whether the coordinator does its work."""

    status: AnyText
    """`ok`, or `cannot record`: then the coordinator decides nothing, and the HTTP status is 503."""
    reason: AnyText
    """Why nothing can be recorded, or of how many jobs no node is heard; empty if all is well."""
    version: AnyText
    """The release of the coordinator."""
    jobs: Whole
    sessions: Whole
    """The number of nodes that are connected."""
    insecure: bool = False
    """Whether everybody who reaches the coordinator is let in, in the clear."""


class LivenessAnswer(Struct, frozen=True, kw_only=True):
    """`GET /healthz` without a token: no more than the HTTP status shows."""

    status: AnyText


class StandbyAnswer(Struct, frozen=True, kw_only=True):
    """`GET /healthz` of a coordinator that stands by, for callers whom it lets in."""

    status: AnyText
    """`standby`, or `nobody leads` with the HTTP status 503, and a `reason` as far as it is known."""
    reason: AnyText


class ErrorAnswer(Struct, frozen=True, kw_only=True):
    """The answer to a request that is not carried out, with an HTTP status of 400 or more."""

    error: AnyText
    """One word for programs, such as `unknown_job`."""
    message: AnyText
    """One sentence for people."""


class AdminBody(Strict, frozen=True):
    """The body of an operator's request; path and method name the request."""

    by: Name
    """The person who asks, by the person's own account."""
    reason: Sentence = ""
    dry_run: bool = False
    """Whether only the answer is wanted, and nothing is to change."""


DRAINED_BEFORE_MAX = 500
"""The body of a request has room for so many names."""


class DrainBody(AdminBody, frozen=True):
    """The body of a drain."""

    ahead: bool = False
    """Whether the name may be one that no node has yet."""
    after: Annotated[tuple[Name, ...], Meta(max_length=DRAINED_BEFORE_MAX)] = ()
    """The names that a dry run would drain before this one."""


class PageLinkBody(Strict, frozen=True):
    """The body of a request for a link to the live page: it is empty."""


class PageLinkAnswer(Struct, frozen=True, kw_only=True):
    """A link to the live page."""

    code: AnyText
    """What opens one session of a browser, as `/#enter=CODE`; empty where everybody is let in."""
    valid_s: Number
    """How long it can be opened."""
    role: AnyText
    """The role of the token, which is also the page's."""


class PageSessionBody(Strict, frozen=True):
    """The body of a browser's request to be let in."""

    code: Annotated[str, printable(64, least=1)]


class PageSessionAnswer(Struct, frozen=True, kw_only=True):
    """A browser was let in; the header `Set-Cookie` has its session."""

    token: AnyText
    """The name of the token whose rights the session has."""
    role: AnyText


class AdminAnswer(Struct, frozen=True, kw_only=True):
    """The result of an operator's request."""

    done: bool
    """False if nothing had to be changed, or nothing was to."""
    message: Annotated[str, Meta(max_length=TEXT_MAX * (NAMES_MAX + 2))]
    """One line; for a drain, one for each of the jobs, of which it names the first few."""


class ApiEvent(Struct, frozen=True, kw_only=True):
    """Something that happened, to a job or to none."""

    id: Annotated[str, Meta(pattern=r"^[!-~]+\Z", max_length=128)]
    """A client sends it back as `Last-Event-ID` or `after`, and gets the events since. It has no other meaning."""
    number: Whole
    """Grows from event to event of one coordinator; another one may begin anew."""
    at: Number
    """The time in seconds since 1970 by the clock of the coordinator's host."""
    job: AnyText
    """Empty where the event concerns no job, or all."""
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
    events: Annotated[tuple[ApiEvent, ...], Meta(max_length=ITEMS_MAX)]
    upto: AnyText = ""
    """The id of the last event that was looked at: a reader that goes on after it misses nothing."""


class SecondsStatus(Struct, frozen=True, kw_only=True):
    """Where the time of a run or round went, in seconds by activity."""

    training: Number = 0.0
    redone: Number = 0.0
    """Steps that an earlier round of the run had done were done again."""
    running: Number = 0.0
    """All workers run, and whether they train is not known."""
    stalled: Number = 0.0
    silent: Number = 0.0
    """No node of the round was heard, so nothing is known of its workers."""
    waiting: Number = 0.0
    rendezvous: Number = 0.0
    starting: Number = 0.0
    detecting: Number = 0.0
    """The round was broken, and that was not known yet."""
    stopping: Number = 0.0


class LedgerStatus(Struct, frozen=True, kw_only=True):
    """The time of a run so far."""

    seconds: SecondsStatus = SecondsStatus()
    total: Number = 0.0
    """The sum of `seconds`."""
    goodput: Number | None = None
    """The share that went into training, 0 to 1; None where no step was ever reported. Steps that were done again are
    no part of it."""


class ProgressStatus(Struct, frozen=True, kw_only=True):
    """How far the workers have come, as far as they report it."""

    step: Whole | None = None
    """The last step that all workers have done."""
    steps_per_s: Number | None = None
    """None where the round does no steps at present."""
    reached: Whole | None = None
    """The furthest step that earlier rounds of the run have come to; None if they reported none."""
    idle_s: Number | None = None
    """How long no worker has done a step; None before the first step of the round, and without a round."""
    usual_s: Number | None = None
    """How long a step took recently; None where that is not known."""


class RestartsStatus(Struct, frozen=True, kw_only=True):
    """The budget of restarts."""

    used: Whole
    max: Whole | None
    """None where torchrun's agents count for themselves."""


class MissingStatus(Struct, frozen=True, kw_only=True):
    """Nodes that the last round had and that are not back."""

    count: Whole = 0
    nodes: Annotated[tuple[AnyText, ...], Meta(max_length=ITEMS_MAX)] = ()
    """The first few of them."""


class LostStatus(Struct, frozen=True, kw_only=True):
    """A node that was lost and is not back."""

    node: AnyText
    host: AnyText
    reason: AnyText
    round: Whole
    """The current round then, or the last one."""
    lost_s: Number
    """How long ago."""


class EarlierRunStatus(Struct, frozen=True, kw_only=True):
    """A run of the job before the present one."""

    run: AnyText
    state: AnyText
    """How it ended."""
    reason: AnyText
    step: Whole | None
    """The last step that all workers had done; None if none was reported."""
    opened_s: Number
    """How long it took."""
    ended_s: Number
    """How long ago."""
    goodput: Number | None
    exit_code: Whole
    """The exit code of its nodes, as a shell has it."""


class NodeStatus(Struct, frozen=True, kw_only=True):
    """A node of a job."""

    node: AnyText
    host: AnyText
    address: AnyText
    state: AnyText
    """A member state; or `spare` for a ready node beyond the maximum, and `starting` for one whose workers run and
    have yet to do the first of their steps."""
    reason: AnyText
    drained: bool = False
    """Whether an operator wants it to leave."""
    group_rank: Whole | None = None
    """None outside a round."""
    ranks: Annotated[tuple[Whole, ...], Meta(max_length=ITEMS_MAX)] = ()
    last_seen_s: Number
    release: AnyText | None = None
    """The release of nodeclient; None if not known."""
    protocol: Whole | None = None
    """The version of the protocol that it uses."""
    log_dir: AnyText | None = None
    """The folder on its host with the logs of this job, in RUN/round_N/RANK below it; None if it keeps none, or it is
    not known."""
    pids: Annotated[tuple[Whole, ...], Meta(max_length=ITEMS_MAX)] = ()
    """The process of each of its workers by local rank, and 0 for one that has ended; empty if it has none, or they are
    not known."""
    steps: Annotated[tuple[Whole | None, ...], Meta(max_length=ITEMS_MAX)] = ()
    """The last step of each of its workers by local rank; empty if none reports any."""
    step_age_s: Number | None = None
    """How long ago the newest of these steps was done."""
    behind: Whole = 0
    """How many steps its slowest worker is behind the furthest worker; 0 if late reports may explain the difference."""
    kept: NodeKeptStatus | None = None
    """The training state that it keeps in memory; None if it keeps none."""
    late: LateStatus | None = None
    """How late its latest worker is; None where that is not known."""
    begun: WorkerStartsStatus | None = None
    """How its workers of the round were begun; None if all are cold and could not be otherwise, or none is started."""


class RoundStatus(Struct, frozen=True, kw_only=True):
    """One of the last rounds of a run; None for what is not known, or has not happened."""

    round: Whole
    nodes: Whole
    workers: Whole
    formed: AnyText | None
    """Why it was formed; the next two fields have why it was stopped, and why it ended."""
    stopped: AnyText | None
    ended: AnyText | None
    planned: bool
    """Whether it was stopped though nothing had gone wrong."""
    charged: bool
    """Whether it counts against the budget of restarts."""
    formed_s: Number | None
    """How long ago it was formed; the next three fields likewise."""
    running_s: Number | None
    stopped_s: Number | None
    ended_s: Number | None
    seconds: SecondsStatus
    """Where the time has gone since the round before ended."""
    begun: WorkerStartsStatus | None = None
    """How its workers were begun; None if all were cold and could not be otherwise, or they never were all started."""


class JobStatus(Struct, frozen=True, kw_only=True):
    """`GET /v1/jobs/{job}`: the live or last run of a job."""

    job: AnyText
    run: AnyText
    state: AnyText
    """`forming`, `starting` (where steps are reported, until the first one), `running`, `stopping`; or how it ended:
    `succeeded`, `failed`, `stopped` or `left`."""
    health: AnyText = "well"
    """How a round that goes on does: `well`, or what is wrong."""
    reason: AnyText
    round: Whole
    """The number of the last round; 0 before the first."""
    opened_s: Number | None = None
    """How long the run has been on, or was."""
    state_s: Number | None = None
    """How long it has been in its state."""
    exit_code: Whole | None = None
    """The exit code of its nodes, as a shell has it; None while it is not over."""
    ledger: LedgerStatus = LedgerStatus()
    world_size: Whole
    """0 without a round."""
    begun: WorkerStartsStatus | None = None
    """How the workers of the present round were begun; None as for a round."""
    progress: ProgressStatus = ProgressStatus()
    kept: KeptStatus | None = None
    """The training state that its nodes keep in memory; None if they keep none."""
    restarts: RestartsStatus
    spares: Whole = 0
    missing: MissingStatus = MissingStatus()
    lost: Annotated[tuple[LostStatus, ...], Meta(max_length=ITEMS_MAX)] = ()
    """The nodes that were lost in the last hour, while the run goes on; the last one first."""
    earlier: Annotated[tuple[EarlierRunStatus, ...], Meta(max_length=ITEMS_MAX)] = ()
    """The runs of the job before this one, the last one first."""
    failure: FailureStatus | None = None
    laggard: LaggardStatus | None = None
    """None if all workers are equally fast, or that is not known."""
    nodes: Annotated[tuple[NodeStatus, ...], Meta(max_length=ITEMS_MAX)] = ()
    """The nodes of the round first, by rank."""
    rounds: Annotated[tuple[RoundStatus, ...], Meta(max_length=ITEMS_MAX)] = ()
    """The last rounds, oldest first. A list of jobs does not have them."""

    @property
    def ended(self) -> bool:
        """Whether it is over: a job that nodes join again under this name is a new run."""
        return self.state in ENDED


class DrainedStatus(Struct, frozen=True, kw_only=True):
    """An operator's drain of a node or host: no round takes it."""

    node: AnyText
    reason: AnyText


class JobsAnswer(Struct, frozen=True, kw_only=True):
    """The answer to `GET /v1/jobs`."""

    jobs: Annotated[tuple[JobStatus, ...], Meta(max_length=ITEMS_MAX)]
    drained: Annotated[tuple[DrainedStatus, ...], Meta(max_length=ITEMS_MAX)] = ()
    insecure: bool = False
    """Whether everybody who reaches the coordinator is let in, in the clear."""
    shared: SharedStatus | None = None
    """Who leads and who stands by; None for a coordinator with a store of its own."""


IN_LIST: Without = {JobStatus: frozenset({"rounds"})}
"""The fields that a list of jobs leaves out."""
