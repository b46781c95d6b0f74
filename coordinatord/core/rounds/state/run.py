"""One run as this life of the daemon knows it: what outlives the daemon, and what is known beside that.

It holds state, and properties that follow from it. `transitions/table` decides which state follows, `queries/reasons`
describes it in words. Only `transitions/apply` changes what is durable; the other transitions and the machine change
the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.state.durable import DurableRun, State
from coordinatord.core.rounds.state.member import Member, MemberState
from coordinatord.core.rounds.state.wings import KeepingWing, NoKeeping, NoWatching, WatchingWing
from coordinatord.core.rounds.values.deadline_heap import DeadlineHeap
from coordinatord.core.rounds.values.ranks import order
from coordinatord.core.rounds.values.root_cause import RoundVerdict, WorkerFailure, find_root_cause
from coordinatord.core.rounds.values.time_ledger import Activity
from coordinatord.core.rounds.values.training_progress import (
    StragglingWorker,
    TrainingProgress,
    find_straggler,
    furthest_step,
    least_step,
)
from coordinatord.hints.network import lost_connection
from coordinatord.protocol.messages import Failure


class Health(StrEnum):
    """What can be seen of a round that goes on, beside its state."""

    WELL = "well"
    STALLED = "stalled"
    """No worker has done a step for much longer than is usual."""
    SILENT = "silent"
    """No node of it can be heard."""


STATES = tuple(MemberState)
"""All of them, as a tuple: an enumeration takes ten times as long to go through, and a start makes a thousand runs."""

MAY_HAVE_WORKERS = tuple(state for state in STATES if state.may_have_workers)


class Wings(Struct, frozen=True):
    """The classes of the wings that each run gets; without any it trains all the same."""

    keeping: Callable[[Run], KeepingWing] = NoKeeping
    watching: Callable[[Run], WatchingWing] = NoWatching


class Run:
    """One run as this life of the daemon knows it; `durable` is what outlives it.

    Members are indexed by their state, so that all counts below cost O(1).
    """

    def __init__(self, durable: DurableRun, policy: Policy, wings: Wings) -> None:  # noqa: PLR0915 - one field a line
        """Begin with what the records hold: all members are out of reach until they are heard."""
        self.durable = durable
        self.keeping, self.watching = wings.keeping(self), wings.watching(self)
        self.job, self.id, self.spec = durable.job, durable.id, durable.spec
        """Three values of `durable` that never change, for short."""
        self.policy = policy
        self.revision = 0
        """It grows with all that changes what a running node is sent: records, policies, states, kept steps."""
        self.remark = ""
        """A warning for the nodes of its first round."""
        self.replaced = False
        """Whether a run with another spec takes its place."""
        self.dated = True
        """Whether it is known when the run ended; the host's clock may have been set back since."""

        self.members: dict[str, Member] = {}
        self.workers = 0
        """How many workers all members have together."""
        self._by_state: dict[MemberState, dict[str, Member]] = {state: {} for state in STATES}
        self._connected: set[str] = set()
        self.missing = dict.fromkeys(durable.order)
        """Nodes of the current or last round that are not members."""
        self.heard_at = 0.0
        """When any member was last heard."""
        self.expired_at = 0.0
        """When the lease of a member last ended."""
        self.others_heard = False
        """Whether nodes of other jobs were heard when no node of this one was any more."""
        self.emptied_at = durable.emptied_at
        """When the run lost its last member, put off by the time in which no node could come."""
        self.give_up = DeadlineHeap[str]()
        """When to let go of each node that waits in vain."""
        self.arrived_last = -math.inf
        """When the last node came that had not been expected, ready or not."""
        self.ready_first: float | None = None
        """When the first node became ready that had not been expected, and was not needed."""
        self.ready_last = -math.inf
        """When the last such node became ready."""
        self.has_newcomer = False
        """Whether a nodeclient has arrived that joined after the last round was formed."""
        self.joined_since: float | None = None
        """When enough nodes for a round had joined, ready or preparing; None while there are too few."""
        self.enough_since: float | None = None
        """When enough nodes for a round became ready; None while there are too few."""
        self.claims: dict[str, None] = {}
        """Nodes whose last report has to be recorded: they have succeeded, or want to leave."""
        self.leaving: set[str] = set()
        """Nodes of the round whose users asked them to leave."""
        self.restart_asked = ""
        """Why an operator wants another round at once; empty if none does."""

        self.progress = TrainingProgress(self.spec.hang_timeout_s or None)
        self.steps_announced = False
        """Whether a worker of the current round has announced steps; nodes repeat that after a restart."""
        self.lost_at = math.inf
        """When the first node that the current round lost was last known to live."""
        self.failures: dict[str, WorkerFailure] = {}
        """The first failure of each node, by node: nodes repeat their reports, and all may fail of one cause."""
        self.consequences_from = math.inf
        """When failures begin to be consequences of the round's stop; infinite if it was a failure that stopped it."""
        self.stop_overdue_at = 0.0
        """When the others stop waiting for a node that cannot end its workers."""
        for member in (*durable.members.values(), *durable.released.values()):
            self.add(Member(member))

    # Members

    def adopt(self, policy: Policy) -> None:
        """Go on with other numbers."""
        self.policy = policy
        self.revision += 1

    def add(self, member: Member) -> None:
        """Add a member."""
        self.members[member.node] = member
        self.workers += member.offer.workers
        self.missing.pop(member.node, None)
        self.place(member)
        self.keeping.add(member)

    def place(self, member: Member) -> None:
        """Index a member, new or changed, by its present state."""
        node = member.node
        state = member.state_in(self.id, self.durable.round)
        if state is not member.state:
            self.revision += 1
            self._by_state[member.state].pop(node, None)
        member.state = state
        self._by_state[state][node] = member  # it keeps its place, so that texts which name nodes stay the same
        if member.is_connected is not (node in self._connected):
            self.revision += 1  # what others are sent names the nodes from which they can get kept state
            self._connected ^= {node}

    def remove(self, member: Member) -> None:
        """Remove a member."""
        node = member.node
        self.revision += 1  # what others are sent may rest on its report, or have waited for it
        self.progress.gone_step = self._step_of([member])
        del self.members[node]
        self.workers -= member.offer.workers
        if node in self.durable.order:
            self.missing[node] = None
        del self._by_state[member.state][node]
        self._connected.discard(node)
        self.keeping.drop(member)
        self.give_up.discard(node)
        self.leaving.discard(node)
        self.claims.pop(node, None)

    def begin_round(self, members: list[Member]) -> None:
        """Begin the round that was recorded, with these nodes; nothing is known against any of them yet."""
        self.missing.clear()
        self.progress.clear()
        self.steps_announced = False
        self.failures, self.lost_at, self.restart_asked = {}, math.inf, ""
        self.ready_first = None
        self.has_newcomer = False
        self.give_up.clear()
        for member in members:
            member.arrived = True
            self.place(member)

    def begin_stop(self, at: float) -> None:
        """Begin the stop of the round that was recorded."""
        self.consequences_from = at if self.durable.first_failure is None else math.inf
        slowest_s = max((member.offer.stop_timeout_s for member in self.inside), default=0.0)
        self.stop_overdue_at = at + slowest_s + self.policy.stop_limit_s

    def prepare(self, member: Member, now: float) -> None:
        """Note that a member has come, and prepares: it has arrived, and will be ready later."""
        if member.preparing_since is None:
            member.preparing_since = now - member.observed.idle_s
            self.arrived_last = now

    def arrive(self, member: Member, now: float) -> None:
        """Note that a member became ready, coming from outside."""
        if member.arrived:
            member.arrived_at = now  # a new member arrived when it joined, whatever restarts
        self.has_newcomer |= member.durable.joined_at > self.durable.formed_at
        if member.arrived or member.preparing_since is None:
            self.arrived_last = now
        member.arrived = True
        self.ready_last = now
        alone = self.count(MemberState.READY) == 1
        just_enough = self.durable.state is State.FORMING and self.count(MemberState.READY) <= self.spec.nodes_min
        if self.ready_first is None or alone or just_enough:
            self.ready_first = now
        self.wait(member, now)

    def wait(self, member: Member, now: float) -> None:
        """Let a ready member wait for the next round, from now on unless it waits already."""
        if self.durable.state is State.FORMING and self.give_up.get(member.node) is None:
            self.give_up.set(member.node, now + member.offer.join_timeout_s)

    def postpone(self, by: float, now: float) -> None:
        """Put off all deadlines of nodes by so many seconds up to now, in which no node could be judged."""
        self.give_up.shift(by)
        for member in self.members.values():  # a node that began to wait within that time waits from now on
            give_up_at, latest = self.give_up.get(member.node), now + member.offer.join_timeout_s
            if give_up_at is not None and give_up_at > latest:
                self.give_up.set(member.node, latest)
        self.stop_overdue_at += by
        self.expired_at += by
        if self.emptied_at is not None:
            self.emptied_at += by

    def take_up(self, now: float) -> None:
        """Go on after the coordinator was away.

        A round that was being stopped has the whole time for that again, which is longer than nodes have to come back
        (`Policy` sees to that). Its nodes heard of the stop when it was on the disk. That may have been long after the
        decision, and only the time of the decision is recorded. A run without members counts as empty from now.

        What fails in a round that was being stopped, and not for a failure, counts as a consequence of the stop.
        Whether it failed earlier is not known: the time of the stop rests on a clock that may have been set meanwhile.
        """
        durable, self.heard_at = self.durable, now
        self.dated = not durable.state.ended or durable.entered_at < now
        if durable.state is State.STOPPING:
            self.begin_stop(now)
        if self.consequences_from < math.inf:
            self.consequences_from = -math.inf
        if durable.first_failure is not None:
            self.failures[durable.first_failure.node] = durable.first_failure
        if self.emptied_at is not None:
            self.emptied_at = now
        self.keeping.take_up()

    @property
    def candidates(self) -> list[Member]:
        """The members to form a round of now, by group rank. Those of the last round are preferred, then early ones."""
        before = self.durable.order
        ready = sorted(
            self.members_in(MemberState.READY), key=lambda member: (member.node not in before, member.arrived_at)
        )
        chosen = {member.node: member for member in ready[: self.spec.nodes_max]}
        previous = {node: ranks.workers for node, ranks in before.items()}
        return [chosen[seat.node] for seat in order([member.seat for member in chosen.values()], previous)]

    @property
    def inside(self) -> Iterator[Member]:
        """Iterate over the members that are in the current round."""
        return (member for member in self.members.values() if member.durable.in_round)

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
        """Whether any member has a session, and its lease is not over."""
        return bool(self._connected)

    @property
    def deserted(self) -> bool:
        """Whether each member's connection has ended and none came back in time; silence alone does not count."""
        return all(member.session is None and member.expired for member in self.members.values())

    @property
    def counted(self) -> int:
        """How many members there are, without those that were released."""
        return len(self.members) - self.count(MemberState.RELEASED)

    @property
    def round_size(self) -> int:
        """How many nodes the current round has left."""
        return self.count(*MAY_HAVE_WORKERS, MemberState.STOPPED, MemberState.SUCCEEDED, MemberState.SILENT)

    @property
    def with_workers(self) -> int:
        """How many nodes of the round may still have workers."""
        return self.count(*MAY_HAVE_WORKERS)

    @property
    def all_silent(self) -> bool:
        """Whether the round goes on, as far as is known, and no node of it can be heard."""
        return bool(self.count(MemberState.SILENT)) and not self._connected

    @property
    def doubtful(self) -> list[Member]:
        """The nodes of the round that were silent for a lease, and have another one to be heard in."""
        return [member for member in self.members_in(*MAY_HAVE_WORKERS) if member.in_doubt]

    @property
    def health(self) -> Health:
        """The health of the round, as far as it can be seen."""
        if self.durable.state not in {State.STARTING, State.RUNNING}:
            return Health.WELL
        if self.all_silent or (self.durable.silent and not self.connected):
            return Health.SILENT
        return Health.STALLED if self.durable.ledger.activity is Activity.STALLED else Health.WELL

    @property
    def activity(self) -> Activity | None:
        """The activity of the open time, as far as is known.

        Workers that announced steps are starting until the first step, or until that is overdue.
        """
        recorded, is_believed = self.durable.ledger.activity, self.steps_announced and not self.durable.step_overdue
        return Activity.STARTING if recorded is Activity.RUNNING and is_believed else recorded

    @property
    def shown_state(self) -> State:
        """The state as it is shown: a round whose workers have yet to do the first of their steps is still starting."""
        is_starting = self.durable.state is State.RUNNING and self.activity is Activity.STARTING
        return State.STARTING if is_starting else self.durable.state

    @property
    def step(self) -> int | None:
        """The step that all workers of the current or last round have reached, as far as any is known."""
        if self.durable.last_step is not None:
            return self.durable.last_step
        return self._step_of(self.members.values())

    @property
    def furthest(self) -> int | None:
        """The furthest step that any worker of this round or an earlier one is known to have done."""
        here = furthest_step((member.observed for member in self.members.values()), self.id, self.durable.round)
        known = [step for step in (self.durable.reached, self.progress.furthest, here) if step is not None]
        return max(known, default=None)

    def _step_of(self, members: Iterable[Member]) -> int | None:
        """Return the least step of these members, and of those that are no longer members."""
        known = least_step((member.observed for member in members), self.id, self.durable.round)
        return min((step for step in (known, self.progress.gone_step) if step is not None), default=None)

    @property
    def workers_gone_s(self) -> float:
        """How long a node that is cut off may have workers of the round: it stops them after the outage grace."""
        return self.policy.outage_grace_s + self.durable.slowest_s

    @property
    def straggler(self) -> StragglingWorker | None:
        """The worker of the round that is furthest behind; None if all that report are at the same step."""
        reports = (
            (member.node, member.durable.assignment.first_rank, member.observed, member.heard_at)
            for member in self.members.values()
            if member.durable.assignment is not None
        )
        return find_straggler(self.id, self.durable.round, reports)

    # Evidence

    def record_failure(self, member: Member, failure: Failure, now: float) -> None:
        """Keep a worker's failure as evidence, one for each node and round.

        Later failures of its workers are added. If the first one was a lost connection, another kind takes its place.
        """
        known = self.failures.get(member.node)
        if known is None or (lost_connection(known.failure) and not lost_connection(failure)):
            self.failures[member.node] = WorkerFailure(member.node, member.offer.host, now - failure.age_s, failure)
        elif len(failure.followers) > len(known.failure.followers):
            self.failures[member.node] = replace(known, failure=replace(known.failure, followers=failure.followers))

    @property
    def pause_s(self) -> float:
        """Return how long the next round waits because of an error that comes again and again.

        It does not wait once a node has arrived that was not in the last round, for then something has changed. It does
        not wait either when an operator asks for a restart.
        """
        if self.durable.state is not State.FORMING or self.has_newcomer or self.restart_asked:
            return 0.0
        return self.policy.pause_after(self.durable.repeats)

    @property
    def verdict(self) -> RoundVerdict:
        """The judgement on what ended the round, by the evidence so far."""
        return find_root_cause(
            self.durable.stop_reason.sentence,
            self.consequences_from,
            self.failures.values(),
            self.durable.losses,
            self.policy.collateral_s,
        )

    @property
    def exhausted(self) -> bool:
        """Whether the round's end would overdraw the budget of restarts, or no restart mends what ended it."""
        cause = self.verdict.charged
        return cause is not None and (cause.failure.final or self.durable.restarts_used >= self.spec.max_restarts)

    @property
    def has_failed(self) -> bool:
        """Whether no worker lives, and the budget allows for no other round or none would help: the job has failed."""
        return self.durable.state is State.STOPPING and not self.with_workers and self.exhausted

    @property
    def is_ending(self) -> bool:
        """Whether nodes are about to go while no worker lives, and memory with them."""
        if self.durable.state is State.FORMING:
            return bool(self.durable.stop_asked or self.count(MemberState.GIVING))
        return self.has_failed
