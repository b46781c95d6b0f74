"""One execution of a job: its members, its current round, and what is known of them.

It holds state and answers questions about it. `table` says which state follows, `reasons` puts it into words. Only
`apply` changes what outlives the daemon; `actions` and the machine change the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from enum import StrEnum

from coordinatord.core.policy import Policy
from coordinatord.core.state.member import Member, MemberState
from coordinatord.core.values.deadline_heap import DeadlineHeap
from coordinatord.core.values.ranks import order
from coordinatord.core.values.records import Reason
from coordinatord.core.values.root_cause import LostNode, RoundVerdict, WorkerFailure, find_root_cause
from coordinatord.core.values.round_history import RoundHistory
from coordinatord.core.values.time_ledger import Activity, Ledger
from coordinatord.core.values.training_progress import Laggard, TrainingProgress, laggard_of, least_step
from coordinatord.protocol.messages import Assignment, Failure, JobSpec, Outcome, Report

MAY_HAVE_WORKERS = tuple(state for state in MemberState if state.may_have_workers)


class State(StrEnum):
    """Where a run is in its life."""

    FORMING = "forming"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    """An operator ended it, or its last node left on purpose."""

    @property
    def ended(self) -> bool:
        """Whether nothing follows any more."""
        return self in {State.SUCCEEDED, State.FAILED, State.STOPPED}


class Health(StrEnum):
    """What is to be seen of a round that goes on, beside its state."""

    WELL = "well"
    STALLED = "stalled"
    """No worker has done a step for much longer than is usual."""
    SILENT = "silent"
    """No node of it can be heard."""


class Run:
    """The state of one run. Members are indexed by their state, so that every question below costs O(1)."""

    repeats = 0
    """How often the error of the last round had come right before, as its record has it."""

    last_left: bool = False
    """The last one that is no member any more left on purpose."""
    concluded: bool = False
    """It ended with the job: its workers succeeded or failed for good, or an operator wanted it."""
    dated: bool = True
    """It is known when it ended, and not only that the host's clock was set back since."""
    remark: str = ""
    """What the nodes of its first round are to be warned of."""

    slowest_s = 0.0
    """How long workers of the round may take to end, by the node that grants them the most."""

    def __init__(  # noqa: PLR0915 - one field a line
        self, job: str, run_id: str, spec: JobSpec, opener: str, policy: Policy, opened_at: float
    ) -> None:
        self.job = job
        self.id = run_id
        self.spec = spec
        self.opener = opener
        """The node whose spec all others must agree with."""
        self.policy = policy
        self.state = State.FORMING
        self.reason = "the first node came"
        self.ledger = Ledger(opened_at)
        self.timeline = RoundHistory()
        self.outcome: Outcome | None = None
        self.restarts_used = 0

        self.members: dict[str, Member] = {}
        self.workers = 0
        """That all members bring together."""
        self.replaced = False
        """A run with another spec takes its place."""
        self._by_state: dict[MemberState, dict[str, Member]] = {state: {} for state in MemberState}
        self._connected: set[str] = set()
        self.heard_at = 0.0
        """When any member last spoke."""
        self.expired_at = 0.0
        """When the lease of a member last ended."""
        self.emptied_at: float | None = None
        """Since when there has been no member, if the last one was lost."""
        self.give_up = DeadlineHeap[str]()
        """When to let go of each node that waits in vain."""
        self.round = 0
        self.order: tuple[str, ...] = ()
        """The nodes of the current or last round, by group rank."""
        self.assignments: dict[str, Assignment] = {}
        """What each of them was given."""
        self.missing: dict[str, None] = {}
        """Those of them that are not members."""
        self.cause = ""
        """Why the last round ended; empty before the first."""
        self.missed = ""
        """Why the current round cannot be the one that was recorded, if so: nodes know of a later one."""
        self.origin = ""
        """Why the current round was formed."""
        self.progress = TrainingProgress()
        self.arrived_first: float | None = None
        """When the first node arrived that need not have been waited for."""
        self.arrived_last: float | None = None
        self.newcomer = False
        """Whether a nodeclient has arrived since the last round was formed that has no part in it."""
        self.stop_overdue_at = 0.0
        """When the others stop waiting for a node that cannot end its workers."""
        self.planned_at: float | None = None
        """When the round was stopped on purpose, all being well."""
        self.trigger = Reason("", "")
        """Why it was stopped."""
        self.failures: dict[str, WorkerFailure] = {}
        """By node: nodes repeat what they said, and all of them may fail of one cause."""
        self.losses: list[LostNode] = []
        self.report: Report | None = None
        """The root cause of the last round that failed by itself, its age as of `reported_at`."""
        self.reported_at = 0.0
        self.leaving: set[str] = set()
        """Nodes of the round whose users asked them to leave."""
        self.stop_asked = ""
        """Why an operator wants the run to end, if so."""
        self.restart_asked = ""
        """Why an operator wants the current round to be followed by another, and without a pause, if so."""
        self.claims: dict[str, None] = {}
        """Nodes that last said something which is to be recorded: that they succeeded, or that they want to leave."""

    # Members

    def add(self, member: Member) -> None:
        """Take a node in."""
        self.members[member.node] = member
        self.workers += member.offer.workers
        self.missing.pop(member.node, None)
        self.place(member)

    def place(self, member: Member) -> None:
        """File a member, new or changed, under its present state."""
        node = member.node
        state = member.state_in(self.id, self.round)
        if state is not member.state:
            self._by_state[member.state].pop(node, None)
        member.state = state
        self._by_state[state][node] = member  # keeps its place, lest the texts that name nodes change all the time
        if member.session is None or member.expired or member.outcome is not None:
            self._connected.discard(node)
        else:
            self._connected.add(node)

    def remove(self, member: Member) -> None:
        """Forget a member."""
        node = member.node
        self.progress.gone = self._step_of([member])
        del self.members[node]
        self.workers -= member.offer.workers
        if node in self.assignments:
            self.missing[node] = None
        del self._by_state[member.state][node]
        self._connected.discard(node)
        self.give_up.discard(node)
        self.leaving.discard(node)
        self.claims.pop(node, None)
        if self.state.ended and not self.members:
            self.order, self.assignments, self.missing = (), {}, {}  # of as many jobs as there ever were

    def release(self, member: Member) -> None:
        """Let a member be in the round no longer."""
        member.in_round = member.succeeded = False
        self.place(member)

    def enter(self, state: State, reason: str, at: float) -> None:
        """Be in this state from then on."""
        self.state, self.reason, self.ledger.entered_at = state, reason, at

    def begin_round(self, number: int, assignments: dict[str, Assignment], members: list[Member]) -> None:
        """Begin a round with these nodes, by group rank; none is missing yet, nothing is known against any."""
        self.round, self.assignments = number, assignments
        self.order = tuple(assignments)
        self.slowest_s = max((member.offer.stop_timeout_s for member in members), default=0.0)
        self.missing.clear()
        self.progress.clear()
        self.failures, self.losses, self.missed, self.restart_asked = {}, [], "", ""
        self.arrived_first = self.arrived_last = None
        self.newcomer = False
        self.ledger.lost_at = math.inf
        self.ledger.stepped = self.ledger.steps_announced = self.ledger.silent = False
        self.give_up.clear()
        for member in members:
            member.in_round = member.arrived = True
            self.place(member)

    def arrive(self, member: Member, now: float) -> None:
        """Note that a member came to be ready from outside."""
        if member.arrived:
            member.arrived_at = now  # else when it joined, which a restart of the coordinator does not change
        self.newcomer |= not member.arrived or member.node not in self.order
        member.arrived = True
        self.arrived_last = now
        alone = self.count(MemberState.READY) == 1
        just_enough = self.state is State.FORMING and self.count(MemberState.READY) <= self.spec.nodes_min
        if self.arrived_first is None or alone or just_enough:
            self.arrived_first = now
        self.wait(member, now)

    def wait(self, member: Member, now: float) -> None:
        """Let a ready member wait for the next round, from now on unless it waits already."""
        if self.state is State.FORMING and self.give_up.get(member.node) is None:
            self.give_up.set(member.node, now + member.offer.join_timeout_s)

    def postpone(self, by: float, now: float) -> None:
        """Move all that nodes may be late for by so many seconds up to now, in which nobody could be judged."""
        self.give_up.shift(by)
        for member in self.members.values():  # who began to wait within that time waits from now on
            give_up_at, latest = self.give_up.get(member.node), now + member.offer.join_timeout_s
            if give_up_at is not None and give_up_at > latest:
                self.give_up.set(member.node, latest)
        self.stop_overdue_at += by
        self.expired_at += by
        if self.emptied_at is not None:
            self.emptied_at += by

    def give_time(self, until: float, now: float) -> None:
        """After a start: leave no node behind before `until`, and count an empty run as empty from now.

        What fails in a round that was being stopped on purpose counts as a consequence of that: whether it was earlier
        is not known, since when the stop was rests on a clock that may have been set meanwhile.
        """
        self.stop_overdue_at = max(self.stop_overdue_at, until)
        self.dated = not self.state.ended or self.ledger.entered_at < now
        if self.planned_at is not None:
            self.planned_at = -math.inf
        if self.emptied_at is not None:
            self.emptied_at = now

    @property
    def candidates(self) -> list[Member]:
        """The members to form a round of now, by group rank: nodes of the last one go first, then who came first."""
        before = set(self.order)
        ready = sorted(self.members_in(MemberState.READY), key=lambda m: (m.node not in before, m.arrived_at))
        chosen = {member.node: member for member in ready[: self.spec.nodes_max]}
        return [chosen[seat.node] for seat in order([member.seat for member in chosen.values()], self.order)]

    @property
    def inside(self) -> Iterator[Member]:
        """Iterate over the members that are in the current round."""
        return (member for member in self.members.values() if member.in_round)

    def members_in(self, *states: MemberState) -> Iterator[Member]:
        """Iterate over the members of some states."""
        for state in states:
            yield from self._by_state[state].values()

    def count(self, *states: MemberState) -> int:
        """Count the members of some states."""
        number = 0
        for state in states:  # a sum over a generator takes twice as long, and every event asks this often
            number += len(self._by_state[state])
        return number

    @property
    def connected(self) -> bool:
        """Whether any member can be heard and told."""
        return bool(self._connected)

    @property
    def deserted(self) -> bool:
        """Whether the connection of each member has ended and none came back in time; mere silence does not count."""
        return all(member.session is None and member.expired for member in self.members.values())

    @property
    def counted(self) -> int:
        """Members, less those that were told to go."""
        return len(self.members) - self.count(MemberState.RELEASED)

    @property
    def round_size(self) -> int:
        """Nodes that the current round has left."""
        return self.count(*MAY_HAVE_WORKERS, MemberState.STOPPED, MemberState.SUCCEEDED, MemberState.SILENT)

    @property
    def with_workers(self) -> int:
        """Nodes of the round that may still have workers."""
        return self.count(*MAY_HAVE_WORKERS)

    @property
    def all_silent(self) -> bool:
        """Whether the round goes on, as far as is known, but nobody can be heard."""
        return bool(self.count(MemberState.SILENT)) and not self._connected

    @property
    def doubtful(self) -> list[Member]:
        """The nodes of the round that were silent for a lease, and have another one to be heard in."""
        return [member for member in self.members_in(*MAY_HAVE_WORKERS) if member.in_doubt]

    @property
    def health(self) -> Health:
        """How the round does, as far as can be heard."""
        if self.state not in {State.STARTING, State.RUNNING}:
            return Health.WELL
        if self.all_silent:
            return Health.SILENT
        return Health.STALLED if self.ledger.cause is Activity.STALLED else Health.WELL

    @property
    def step(self) -> int | None:
        """The step that all workers of the current or last round have come to, as far as any is known."""
        return self._step_of(self.members.values())

    def _step_of(self, members: Iterable[Member]) -> int | None:
        """Return the least step of some members, and of those that are members no more."""
        known = least_step((member.observed for member in members), self.id, self.round)
        gone = self.progress.gone
        return gone if known is None else known if gone is None else min(known, gone)

    @property
    def workers_gone_s(self) -> float:
        """For how long a node that is cut off may have workers of the round: it stops them after the outage grace."""
        return self.policy.outage_grace_s + self.slowest_s

    @property
    def laggard(self) -> Laggard | None:
        """The worker of the round that has come the least far; None if all that report are equally far."""
        told = (
            (member.node, self.assignments[member.node].first_rank, member.observed, member.heard_at)
            for member in self.inside
        )
        return laggard_of(self.id, self.round, told)

    # Evidence

    def record_failure(self, member: Member, failure: Failure, now: float) -> None:
        """Keep a worker's failure as evidence, one for each node and round; what followed it there may grow."""
        known = self.failures.get(member.node)
        if known is None:
            host = member.offer.host
            self.failures[member.node] = WorkerFailure(member.node, host, now - failure.age_s, failure)
        elif len(failure.followers) > len(known.failure.followers):
            grown = replace(known.failure, followers=failure.followers)
            self.failures[member.node] = replace(known, failure=grown)

    def keep(self, report: Report | None, at: float) -> None:
        """Remember why a round failed, until another one does."""
        if report is not None:
            self.report, self.reported_at = report, at

    @property
    def pause_s(self) -> float:
        """How long the next round waits because of an error that comes again and again.

        Once a node has arrived that was not in the last round it does not: something has changed. Nor does it when an
        operator asks for a restart.
        """
        if self.state is not State.FORMING or self.newcomer or self.restart_asked:
            return 0.0
        return self.policy.pause_after(self.repeats)

    @property
    def verdict(self) -> RoundVerdict:
        """The judgement on what ended the round, by the evidence so far."""
        return find_root_cause(
            self.trigger.words, self.planned_at, self.failures.values(), self.losses, self.policy.collateral_s
        )

    @property
    def exhausted(self) -> bool:
        """Whether the round's end would overdraw the budget of restarts."""
        return self.verdict.charged is not None and self.restarts_used >= self.spec.max_restarts
