"""One run, which is one execution of a job: its durable state, and its live state, which nodes report anew."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from enum import StrEnum
from operator import itemgetter

from msgspec import Struct

from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.state.durable import DurableRun, State
from coordinatord.core.rounds.state.evidence import Evidence, ExitCounts
from coordinatord.core.rounds.state.gathering import Gathering
from coordinatord.core.rounds.state.member import Member
from coordinatord.core.rounds.state.roll import Roll
from coordinatord.core.rounds.state.wings import JudgingWing, KeepingWing, WatchingWing
from coordinatord.core.rounds.values import records
from coordinatord.core.rounds.values.ranks import Ranks
from coordinatord.core.rounds.values.records import Record
from coordinatord.core.rounds.values.time_ledger import Activity
from coordinatord.core.rounds.values.training_progress import TrainingProgress
from coordinatord.protocol.messages import Observed


class Health(StrEnum):
    """Whether a round at work makes progress, as far as can be seen."""

    WELL = "well"
    STALLED = "stalled"
    """No worker has done a step for much longer than is usual."""
    SILENT = "silent"
    """No node of it can be heard."""


class StragglingWorker(Struct, frozen=True):
    """The worker of a round that is furthest behind, of those that report steps."""

    node: str
    rank: int
    lag: int
    """How many steps it is behind the furthest worker."""
    stepped_at: float
    """When a worker of its node last did a step."""


class Wings(Struct, frozen=True):
    """The classes of the three wings of each run; by default, wings that do nothing."""

    keeping: Callable[[Run], KeepingWing] = KeepingWing
    watching: Callable[[Run], WatchingWing] = WatchingWing
    judging: Callable[[Run], JudgingWing] = JudgingWing


class Run:
    """One run of a job. `durable` outlives the daemon; all else is known only to this life of it."""

    def __init__(self, durable: DurableRun, policy: Policy, wings: Wings) -> None:
        """Begin with the durable state: all members are disconnected until they join again."""
        self.durable = durable
        self.job, self.id, self.spec = durable.job, durable.id, durable.spec
        """Copies of three values of `durable` that never change."""
        self.policy = policy
        self.followed = 0
        """How many records, changes of the policy and announcements of steps the run has followed in this life of the
        daemon: a part of `revision`."""
        self.remark = ""
        """A warning for the nodes of the first round: that the job had succeeded before. Empty without one."""
        self.replaced = False
        """Whether a run with another spec takes its place."""
        self.is_end_dated = True
        """Whether it is known when the run ended. It is not known if the host's clock was set back before a restart."""

        self.roll = Roll(durable)
        self.members = self.roll.members
        self.emptied_at = durable.emptied_at
        """The same time as in `durable`, put off by the time in which the coordinator was asleep: see `postpone`."""
        self.gathering = Gathering(durable, self.roll)
        self.claims: dict[str, None] = {}
        """Nodes that are drained, or whose last report has news to record, such as a first step. The keys are an
        ordered set. `observations.record_claims` acts on them and clears it."""
        self.leaving: set[str] = set()
        """Nodes of the round that are to leave when it is over."""
        self.restart_asked = ""
        """Why an operator wants another round at once; empty if none does."""

        self.progress = TrainingProgress(self.spec.hang_timeout_s or None)
        self.steps_announced = False
        """Whether a worker of the current round has announced steps; nodes repeat that after a restart. Its hangs are
        noticed from then on, and the round counts as starting until its first step, see `activity`."""
        self.evidence = Evidence()
        self.exits = ExitCounts(durable.order[node] for node in durable.succeeded)
        self.keeping, self.watching, self.judging = wings.keeping(self), wings.watching(self), wings.judging(self)
        for member in (*durable.members.values(), *durable.released.values()):
            self.roll.add(Member(member))

    # Changes

    def follow(self, record: Record) -> None:
        """Bring the run up to date with a record; those of other kinds change only the durable state."""
        self.followed += 1  # so that its nodes get new messages
        match record:
            case records.NodeJoined():
                self.roll.add(Member(self.durable.members[record.node]))
            case records.NodeLost():
                self.remove(self.members[record.node])
            case records.NodeReleased():
                self.gathering.join_timeouts.discard(record.node)
                self.leaving.discard(record.node)
                self.roll.place(self.members[record.node])
            case records.NodeSucceeded() | records.NodeLeftBehind():
                self.roll.place(self.members[record.node])
            case records.RoundFormed():
                self._begin_round(record.nodes)
            case records.RoundStopped():
                self._begin_stop(self.durable.entered_at)
            case records.RoundsMissed() | records.RoundEnded():
                self.roll.place_all()
            case records.RunEnded():
                self._end()
        if isinstance(record, records.NodeJoined | records.NodeLost | records.NodeReleased):
            self.emptied_at = self.durable.emptied_at

    def remove(self, member: Member) -> None:
        """Remove a member. The steps that it has reported stay known: the least one, and the furthest one."""
        gone = [member]
        self.progress.gone_step, self.progress.pace.furthest = self._least_step(gone), self._furthest_step(gone)
        self.roll.remove(member)
        self.keeping.remove(member)
        self.judging.remove(member)
        self.gathering.join_timeouts.discard(member.node)
        self.leaving.discard(member.node)
        self.claims.pop(member.node, None)

    def _begin_round(self, nodes: Collection[Ranks]) -> None:
        """Begin the round that was just recorded, with these nodes."""
        self.roll.missing.clear()
        members = [(self.members[ranks.node], ranks.workers) for ranks in nodes]
        self.progress.begin_round({(member.node, member.incarnation, workers) for member, workers in members})
        self.steps_announced, self.restart_asked = False, ""
        self.evidence = Evidence()
        self.exits = ExitCounts()
        self.gathering.begin_round()
        for member in self.members.values():
            if member.readiness.enlisted:  # for this round only, whether it was taken or is a spare
                member.readiness.enlisted = False
                self.roll.place(member)
        for ranks in nodes:
            member = self.members[ranks.node]
            member.readiness.has_arrived = True  # an enlisted one has become ready without `record_ready`
            self.roll.place(member)

    def _begin_stop(self, at: float) -> None:
        """Begin the stop that was recorded at `at`."""
        # That of a lost node no longer counts, as it does in `durable.stop_timeout_s`.
        stop_timeout_s = max((member.offer.stop_timeout_s for member in self.roll.inside), default=0.0)
        self.evidence.begin_stop(self.durable, stop_timeout_s, self.policy, at)
        first = self.durable.first_failure
        has_hung = first is not None and first.failure.hang is not None
        self.progress.first_steps.end_round(self._ran_without_step_s, has_hung=has_hung)

    def _end(self) -> None:
        """Drop the live state that only another round would need, since a thousand ended runs are kept."""
        self.gathering.join_timeouts.clear()
        self.evidence = Evidence()
        self.roll.missing.clear()
        self.leaving.clear()
        self.claims.clear()
        self.judging.stop_tests("the job is over")

    def postpone(self, by: float, now: float) -> None:
        """Put off all deadlines of nodes by the `by` seconds for which the coordinator slept or had no store."""
        self.gathering.postpone(by, now)
        self.evidence.stop_overdue_at += by
        self.roll.expired_at += by
        self.judging.postpone(by)
        if self.emptied_at is not None:
            self.emptied_at += by

    def after_restart(self, now: float) -> None:
        """Go on after a restart of the coordinator.

        A round that is being stopped gets the whole time for that again: the record has the time of the decision, and
        nodes may have received the stop much later. A run without members counts as empty from now.
        """
        durable, self.roll.heard_at = self.durable, now
        self.is_end_dated = not durable.state.ended or durable.entered_at < now
        if durable.state is State.STOPPING:
            self._begin_stop(now)
        self.evidence.after_restart(durable)
        if self.emptied_at is not None:
            self.emptied_at = now
        self.keeping.after_restart(now)

    # Queries

    @property
    def health(self) -> Health:
        """The health of the round; `WELL` without a round at work."""
        if not self.durable.state.at_work:
            return Health.WELL
        # After a restart no member counts as silent yet. A silence on record lasts until a member is connected.
        if self.roll.all_silent or (self.durable.silent and not self.roll.connected):
            return Health.SILENT
        return Health.STALLED if self.durable.ledger.activity is Activity.STALLED else Health.WELL

    @property
    def activity(self) -> Activity | None:
        """The activity since the last record that settled the time; None once the run is over.

        Workers that announced steps are starting until the first step is done or overdue. They announce them after
        their start is recorded, so the records say that they run.
        """
        recorded, step_awaited = self.durable.ledger.activity, self.steps_announced and not self.durable.step_overdue
        return Activity.STARTING if recorded is Activity.RUNNING and step_awaited else recorded

    @property
    def _ran_without_step_s(self) -> float | None:
        """How many seconds the workers of the stopped round ran without a step; None if they did one, or never ran."""
        current = self.durable.rounds.current
        if self.durable.stepped or current is None or current.running_at is None or current.stopped_at is None:
            return None
        return current.stopped_at - current.running_at

    @property
    def step(self) -> int | None:
        """The step that all workers of the current or last round have reached; None if none is known.

        A node that was lost may not have reported its last steps. So a step whose kept state is whole counts as well:
        all workers have reached it, even if the least step that is reported is an earlier one.
        """
        if self.durable.last_step is not None:
            return self.durable.last_step
        # If the script has restarted its count within the round, the kept step is of the count before.
        kept = None if self.progress.pace.counts_anew else self.keeping.reached
        known = (self._least_step(self.members.values()), kept)
        return max((step for step in known if step is not None), default=None)

    @property
    def last_step(self) -> int | None:
        """The `step` of the run if it ends now; if its last round did none, the furthest of earlier rounds."""
        return self.durable.reached if self.step is None else self.step

    @property
    def furthest(self) -> int | None:
        """The furthest step that any worker of this round or an earlier one is known to have done."""
        known = [step for step in (self.durable.reached, self.furthest_here) if step is not None]
        return max(known, default=None)

    @property
    def furthest_here(self) -> int | None:
        """The furthest step of the current or last round that this life of the daemon has heard of."""
        return self._furthest_step(self.members.values())

    def _least_step(self, members: Iterable[Member]) -> int | None:
        """Return the least step of these members and of removed ones."""
        gone = self.progress.gone_step
        known = [step for _, _, step in self.worker_steps(members)]
        return min(known if gone is None else [*known, gone], default=None)

    def _furthest_step(self, members: Iterable[Member]) -> int | None:
        """Return the furthest step of these members, or `Pace.furthest` if that is further, as it has removed ones."""
        recorded = self.progress.pace.furthest
        known = [step for _, _, step in self.worker_steps(members)]
        return max(known if recorded is None else [*known, recorded], default=None)

    def is_about_round(self, observed: Observed) -> bool:
        """Whether a report is about the current or last round."""
        return observed.round == self.durable.round and observed.run == self.id

    def worker_steps(self, members: Iterable[Member]) -> Iterator[tuple[Member, int, int]]:
        """Yield each worker of the current or last round that reports steps: its member, its rank, and its step."""
        for member in members:
            ranks = self.durable.order.get(member.node)
            if ranks is not None and self.is_about_round(member.observed):
                for rank, step in enumerate(member.observed.steps, ranks.first_rank):
                    if step is not None:
                        yield member, rank, step

    @property
    def straggler(self) -> StragglingWorker | None:
        """The worker of the round that is furthest behind; None unless two report different steps."""
        workers = list(self.worker_steps(self.members.values()))
        if not workers:
            return None
        member, rank, step = min(workers, key=itemgetter(2))
        lag = max(step for _, _, step in workers) - step
        stepped_at = member.lease.heard_at - (member.observed.step_age_s or 0.0)
        return StragglingWorker(member.node, rank, lag, stepped_at) if lag else None

    @property
    def difference(self) -> str:
        """Say which ranks differ, or since which step some may, if rounds went on though some did; else empty."""
        found, since = self.durable.divergence, self.durable.doubted
        if found is not None:
            return found.reason
        if since is None:
            return ""
        text = f"replicas may differ since step {since.step:,} of round {since.round}"
        return text + self.keeping.staying_step(since)

    @property
    def workers_gone_s(self) -> float:
        """How many seconds a node that is cut off may still have workers: it stops them after the outage grace."""
        return self.policy.outage_grace_s + self.durable.stop_timeout_s

    @property
    def revision(self) -> int:
        """A counter of all changes that may change the message to a running node; see `desired_state.message_to`."""
        return self.followed + self.roll.changes + self.keeping.changes + self.watching.changes
