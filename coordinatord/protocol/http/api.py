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

from coordinatord.protocol.fields import Name, Sentence
from coordinatord.protocol.http.answer_fields import ITEMS_MAX, AnyText, Number, Whole
from coordinatord.protocol.http.coordinator_answers import SharedStatus
from coordinatord.protocol.http.failure_answers import FailureStatus
from coordinatord.protocol.http.kept_answers import KeptStatus, NodeKeptStatus
from coordinatord.protocol.http.lateness_answers import LaggardStatus, LateStatus
from coordinatord.protocol.http.start_answers import WorkerStartsStatus
from coordinatord.protocol.schema import Strict, Without, printable
from coordinatord.protocol.text import NAMES_MAX, TEXT_MAX

ENDED = frozenset({"succeeded", "failed", "stopped", "left"})
"""States of a job that it does not leave by itself."""


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


class DrainBody(Strict, frozen=True):
    """The body of a drain; the first three fields mean what they do in `AdminBody`."""

    by: Name
    reason: Sentence = ""
    dry_run: bool = False
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
