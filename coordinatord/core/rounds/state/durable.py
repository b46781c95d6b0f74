"""The durable state, which outlives the daemon: the jobs, their runs and members, and the drained nodes.

Only `transitions/apply` changes it, and only by records. A restarted daemon applies the same records, so its durable
state is equal (`==`). Times are in the clock of the daemon that applied the records.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from msgspec import Struct

from coordinatord.core.rounds.values.due_times import LONG_AGO
from coordinatord.core.rounds.values.judged_host import JudgedHost
from coordinatord.core.rounds.values.ranks import Ranks
from coordinatord.core.rounds.values.records import Reason, ReplicasDiverged
from coordinatord.core.rounds.values.resume_point import ResumePoint, SpoiledStep
from coordinatord.core.rounds.values.root_cause import LostNode, WorkerFailure
from coordinatord.core.rounds.values.round_history import RoundHistory
from coordinatord.core.rounds.values.time_ledger import Activity, Ledger, Spent
from coordinatord.protocol.kept_state import KeptStep
from coordinatord.protocol.messages import Assignment, JobSpec, NodeOffer, Outcome, Report

FORGOTTEN_MAX = 1_000
"""The most forgotten runs that are kept, as in the store, to refuse nodes that come back to one. Nodes give up long
before so many are forgotten."""

RELEASED_MAX = 200
"""The most released nodes that are kept of a run, as in the store. Each is kept to receive its outcome, which takes a
moment; without a limit, one that joins and gives up every few seconds would add up."""

LOST_MAX = 32
"""The most losses that are kept of a run: a rack of hosts. The store keeps more."""

LOST_ROUNDS = 20
"""A loss is kept for so many rounds after it at most: fewer than the store keeps, so that a restart forgets none."""

EARLIER_MAX = 2
"""The earlier runs of a job that are kept: the store keeps the last three with the present one."""


class State(StrEnum):
    """Where a run is in its life."""

    FORMING = "forming"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    """An operator ended the run."""
    LEFT = "left"
    """The last node of the run left on purpose: its user ended it, or an operator drained it."""

    @property
    def at_work(self) -> bool:
        """Whether the run has a round that goes on: its workers start or run."""
        return self in {State.STARTING, State.RUNNING}

    @property
    def ended(self) -> bool:
        """Whether the run is over."""
        return self in {State.SUCCEEDED, State.FAILED, State.STOPPED, State.LEFT}


@dataclass(slots=True)
class DurableMember:
    """One node of a run, by the records."""

    node: str
    incarnation: int
    offer: NodeOffer
    peer_address: str
    """The address from which the node joined; it may come back from another one."""
    local_address: str
    """The coordinator's own address to which it connected then."""
    joined_at: float
    token: str = ""
    """The name of the access token that the node joined with; empty if none is known."""
    assignment: Assignment | None = None
    """The node's part in the current round; None if it has none."""
    has_taken_part: bool = False
    """Whether the node has been in a round of this run."""
    succeeded: bool = False
    """Whether all workers of the node in the current round exited with 0."""
    outcome: Outcome | None = None
    """The outcome with which the node was released while the run goes on."""

    @property
    def in_round(self) -> bool:
        """Whether the node has a part in the current round."""
        return self.assignment is not None


class LostMember(Struct, frozen=True):
    """A node that a run has lost, in a round or not."""

    node: str
    host: str
    reason: str
    round: int
    """The current round then, or the last one."""
    at: float
    silent: bool
    """Whether its host or its network went, and not only its process."""


class EarlierRun(Struct, frozen=True):
    """The summary of an earlier run of a job."""

    run: str
    state: State
    reason: str
    step: int | None
    """The step that all workers had come to; None if none is known."""
    spent: Spent
    ended_at: float
    exit_code: int
    spoiled: tuple[SpoiledStep, ...] = ()
    """Its steps on the disk that no later run resumes from."""
    doubted: KeptStep | None = None
    """The first of its steps in which ranks may differ; None after a success."""


@dataclass(slots=True)
class DurableRun:
    """One run of a job, by the records.

    The fields are about the run itself, its nodes, its current or last round, the end of the round before, and the end
    of the run, in this order.
    """

    job: str
    id: str
    spec: JobSpec
    opener: str
    """The node whose spec all others must agree with."""
    entered_at: float
    """When the run entered its present state, or began to train in it."""
    ledger: Ledger
    earlier: tuple[EarlierRun, ...] = ()
    """The runs of the job before this one, the last one first."""
    state: State = State.FORMING
    reason: str = "the first node came"
    rounds: RoundHistory = field(default_factory=RoundHistory)
    """The last rounds; none once the run has ended, since the store has them."""
    restarts_used: int = 0
    charged_at: tuple[float, ...] = ()
    """When the restarts within the window were charged, by the ledger; empty without a window."""
    futile: int = 0
    """How many rounds in a row, up to the last one, have failed without a new step."""
    reports_steps: bool = False
    """Whether the workers have reported steps, in this round or before."""
    exit_overdue: str = ""
    """Which workers of the round had not ended when others had, if they took long; empty if none did."""
    unseen_told: bool = False
    """Whether it is recorded that no worker of a round showed where it stands."""

    members: dict[str, DurableMember] = field(default_factory=dict)
    """Nodes that belong to the run, in the order in which they joined; empty once it has ended."""
    released: dict[str, DurableMember] = field(default_factory=dict)
    """The last nodes that were released while the run goes on, oldest first: each gets its outcome if it comes."""
    lost: list[LostMember] = field(default_factory=list)
    """The last nodes that were lost while the run goes on, the oldest first; some of them may be back."""
    last_left: bool = False
    """Whether the last node that left did so on purpose."""
    emptied_at: float | None = None
    """When the run lost its last member; None if it has members, or the last one left by itself."""

    round: int = 0
    """The number of the current or last round; before the first one, the last number that nodes remember."""
    order: dict[str, Ranks] = field(default_factory=dict)
    """The nodes of the current or last round by group rank, with their ranks; empty once the run has ended."""
    formed_at: float = LONG_AGO
    """When the current or last round was formed; `LONG_AGO` before the first."""
    formed_reason: str = ""
    stop_timeout_s: float = 0.0
    """The longest stop timeout of the round's nodes, in seconds."""
    resume: ResumePoint | None = None
    """The step that the workers of the current or last round resume from; None if they resume from none."""
    why_anew: str = ""
    """Why they resume from none, although nodes kept some; empty if they resume from one, or none was kept."""
    spoiled: tuple[SpoiledStep, ...] = ()
    """The steps that were damaged in memory, or in which ranks differed, in the order in which they were found. What is
    damaged on the disk, nodes report themselves."""
    doubted: KeptStep | None = None
    """The first step in which ranks may differ, as long as rounds go on from it."""
    stepped: bool = False
    """Whether a worker has reported a step of the current round."""
    step_overdue: bool = False
    """Whether it is recorded that the first step of the current round is late."""
    reached: int | None = None
    """The furthest step that a worker of any earlier round of this run has reported."""
    repeats_steps: bool = False
    """Whether the current round does steps again, up to `reached`."""
    divergence: ReplicasDiverged | None = None
    """The record that ranks of the current or last round have different states; None while none have."""
    silent: bool = False
    """Whether it is recorded that no node of the current round can be heard."""
    superseded_reason: str = ""
    """Why the recorded round is not the last one, if nodes know of a later one; else empty."""
    succeeded: set[str] = field(default_factory=set)
    """Nodes of the current round, still members or not, whose workers have all exited with 0."""
    losses: list[LostNode] = field(default_factory=list)
    """Nodes that the current or last round has lost."""
    stop_reason: Reason = field(default=Reason("", ""))
    planned: bool = False
    """Whether the last round was stopped on purpose, with nothing wrong."""
    first_failure: WorkerFailure | None = None
    """The earliest failure of a worker that was known when the round was stopped."""

    last_end_reason: str = ""
    """Why the last round ended; empty before the first."""
    repeats: int = 0
    """How many rounds in a row before the last one had the same error."""
    report: Report | None = None
    """The root cause of the last round that failed by itself, with its age as of `reported_at`."""
    reported_at: float = 0.0

    stop_asked: str = ""
    """Why an operator wants the run to end; empty if none does, and once it has ended."""
    outcome: Outcome | None = None
    concluded: bool = False
    """Whether the job ended with the run: its workers succeeded or failed for good, or an operator stopped it."""
    last_step: int | None = None
    """The step that all workers had come to when the run ended; None if none is known."""

    @property
    def activity_at_work(self) -> Activity:
        """The activity of the current round in the ledger while nothing is wrong with it."""
        if self.stepped:
            return Activity.REDONE if self.repeats_steps else Activity.TRAINING
        awaited = self.state is State.STARTING or self.reports_steps
        return Activity.STARTING if awaited else Activity.RUNNING

    def lost_steps(self, step: int | None = None) -> str:
        """Say which steps are done again since the round begins anew; empty if none are, or nothing was kept of them.

        With `step`, it is as if that were the first step of the round.
        """
        repeats = self.repeats_steps if step is None else self.is_repeated(step)
        return f"steps up to {self.reached:,} are done again: {self.why_anew}" if repeats and self.why_anew else ""

    def is_repeated(self, step: int) -> bool:
        """Whether a round whose first step is this one does steps again."""
        return self.reached is not None and step < self.reached

    def nodes_of(self, ranks: Collection[int]) -> list[Ranks]:
        """Return the nodes of the current or last round that have any of these ranks, by group rank."""
        each = self.order.values()
        return [own for own in each if any(0 <= rank - own.first_rank < own.workers for rank in ranks)]

    def knows(self, run: str) -> bool:
        """Whether this is the id of the run, or of an earlier run of the job that is kept."""
        return run == self.id or any(run == earlier.run for earlier in self.earlier)

    @property
    def has_had_rounds(self) -> bool:
        """Whether the run has had a round.

        In a live run, `round` does not show that: nodes may remember the number of another run's round. It is 0 once a
        run has ended without a round.
        """
        return bool(self.round) if self.state.ended else bool(list(self.rounds))

    @property
    def inside(self) -> Iterator[DurableMember]:
        """Iterate over the members that are in the current round."""
        return (member for member in self.members.values() if member.in_round)


@dataclass(slots=True)
class DurableCluster:
    """The durable state of one coordinator."""

    jobs: dict[str, DurableRun] = field(default_factory=dict)
    """The live or last run of each job, in the order in which they were opened."""
    drained: dict[str, dict[str, str]] = field(default_factory=dict)
    """Why nodes and hosts are drained, by name, and then by job. An operator's drain holds for all jobs, and is under
    the empty job. A job may drain a node only for itself (`--drain-laggards`): that is under the job's name."""
    hosts: dict[str, JudgedHost] = field(default_factory=dict)
    """The hosts that are charged with failed rounds or quarantined, by name, the last one judged at the end."""
    host_forgotten_at: float = math.inf
    """The least `forgotten_at` of these hosts, or an earlier time: before it, none of them is to be forgotten, so most
    judgements need not look at all of them."""
    forgotten: dict[str, str] = field(default_factory=dict)
    """The last forgotten runs, by id, each with the reason: a node that comes back to one must not open another."""

    def why_quarantined(self, host: str) -> str:
        """Return why rounds do without a host if they can; empty if they do not."""
        known = self.hosts.get(host)
        return "" if known is None else known.quarantined

    @property
    def drains(self) -> int:
        """The number of drains, of all names."""
        return sum(map(len, self.drained.values()))

    def why_drained(self, job: str, node: str, host: str, besides: str = "") -> tuple[str, str] | None:
        """Return the name under which a node is drained for a job, and why; None if it is not.

        A name that a job has drained by itself is that of a node, and never of a host. Drains of the name `besides` do
        not count: an operator is about to cancel them.
        """
        drains = ((node, ""), (node, job), (host, ""))
        found = ((name, self.drained.get(name, {}).get(only_job)) for name, only_job in drains if name != besides)
        return next(((name, reason) for name, reason in found if reason is not None), None)
