"""The one entry to all decisions of the coordinator: `Coordinator` takes an event, and returns a `Batch`.

A batch has records, which have to become durable first, and effects, which the driver (`coordinatord/server/driver`)
carries out then. The machine has no clock. The driver gives it the time with each event, and a `Tick` when
`next_deadline` says so. So a simulation can play days in a second, and the same events lead to the same decisions.

The machine finds the run (one execution of a job) and the member (a node in it) that an event is about. It keeps the
sessions, which are the nodes' connections, and the leases, which say how long a node may be silent. Then the run's
table of transitions decides what follows (`_advance`). Nearly all events are heartbeats without news, up to 4,000 a
second. A shorter path answers them (`_answer_heartbeat`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from typing import Any

from msgspec.structs import replace

from coordinatord.core import admin
from coordinatord.core.judging.run_judging import RunJudging
from coordinatord.core.keeping.run_keeping import RunKeeping
from coordinatord.core.leases import LeaseDeadlines, SleepWatch
from coordinatord.core.registry import Registry
from coordinatord.core.rounds import events
from coordinatord.core.rounds.effects import Answer, Batch, Refuse, ReportDegraded
from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.queries import admission
from coordinatord.core.rounds.state.cluster import Cluster, apply_drains, apply_quarantines
from coordinatord.core.rounds.state.gathering import RefusedNode
from coordinatord.core.rounds.state.member import Member, MemberState
from coordinatord.core.rounds.state.run import Run, Wings
from coordinatord.core.rounds.transitions import actions, observations, releases
from coordinatord.core.rounds.transitions.apply import apply
from coordinatord.core.rounds.transitions.decision import Decision, send_desired
from coordinatord.core.rounds.transitions.table import first_due, take_due_rows
from coordinatord.core.rounds.values.admin_requests import AdminResult
from coordinatord.core.rounds.values.due_times import NOW
from coordinatord.core.rounds.values.records import AGE_MAX, HostJudged, NodeLost, Record
from coordinatord.core.watching.run_watch import RunWatch
from coordinatord.protocol.errors import CompleteMap
from coordinatord.protocol.messages import Degraded, Desired, Observed
from coordinatord.protocol.news import Mark, marked
from coordinatord.protocol.text import clip

POSTPONED_EVERY_S = 0.25
"""The least seconds between two postponements of all deadlines, while the coordinator reads the messages that came when
it was asleep. Each postponement visits all nodes: one for each of 10,000 messages would itself make it late."""

FAREWELL_LEASES = 2
"""How many leases a coordinator without live runs waits for lost nodes to fetch their outcome."""

WINGS = Wings(keeping=RunKeeping, watching=RunWatch, judging=RunJudging)
"""The wings of each run. Only tests of the kernel have others."""


class Coordinator:
    """Decides for every job who is in it, which round is on and who has which rank."""

    def __init__(self, policy: Policy, epoch: str, wings: Wings = WINGS) -> None:
        """Begin without jobs; `epoch` makes the run ids of this life of the daemon differ from those of all others."""
        self.cluster = Cluster(policy, wings)
        self.store_error: str | None = None
        """Why nothing can be recorded at present, and so nothing is decided; None while records can be written."""
        self.registry = Registry(self.cluster, epoch)
        self._sleep_watch = SleepWatch()
        self._sessions: dict[int, tuple[Run, Member]] = {}
        """The run and the member of each open session, by its number."""
        self._leases = LeaseDeadlines()
        self._farewells_until = NOW
        """When the last lost node stops trying to come back for the outcome of its run."""
        self._due: float | None = None
        """When the first deadline of any run or lease is due."""
        self._handlers = CompleteMap[type[events.Event], Callable[[Any, Decision], None]]("events of a coordinator")
        self._handlers |= {
            events.Reported: self._report,
            events.Connected: self._connect,
            events.Disconnected: self._disconnect,
            events.TokensRevoked: self._revoke,
            events.AdminRequested: self._carry_out,
            events.Tick: self._tick,
            events.StoreFailed: self._store_failed,
            events.StoreRecovered: self._store_recovered,
            events.PolicyChanged: self._change_policy,
            events.Looked: self._record_answers,
            events.Compared: self._record_answers,
        }

    @property
    def policy(self) -> Policy:
        """The present policy."""
        return self.cluster.policy

    @property
    def jobs(self) -> dict[str, Run]:
        """The live or last run of each job, in the order in which they were opened."""
        return self.cluster.jobs

    @property
    def sessions(self) -> int:
        """How many nodes are connected."""
        return len(self._sessions)

    def needed_until(self) -> float:
        """Return when no node needs this coordinator any more; infinity while a run is live or a node is connected."""
        return math.inf if self._sessions or any(self.cluster.live) else self._farewells_until

    def restore(self, past: Iterable[tuple[float, Record]], now: float, tokens: Collection[str] = ()) -> None:
        """Restore the state from the records of earlier lives, each with its time by this clock, at most `now`.

        All deadlines begin anew, and each node has the restart grace to come back. `tokens` are the names of the valid
        access tokens. A member whose token is not among them may come back with any of them. Raises `HistoryError`.
        """
        self._sleep_watch.begin(self.policy, now)
        for at, record in past:
            apply(self.cluster.durable, record, at)
        for job, durable in self.cluster.durable.jobs.items():
            run = Run(durable, self.policy, self.cluster.wings)
            self.cluster.jobs[job] = self.registry.runs[durable.id] = run
            run.after_restart(now)
            for member in run.members.values():
                member.lease.heard_at = now
                # It is not known how long the node has been gone: its loss may have caused any failure that is known.
                member.session.closed_at = now - AGE_MAX
                member.lease.awaited_from = now + self.policy.restart_grace_s
                member.session.revoked = bool(member.session.token) and member.session.token not in tokens
                self._leases.set((run.id, member.node), now + self.policy.restart_grace_s)
            self.registry.plan(run, first_due(run))
        apply_drains(self.cluster)
        apply_quarantines(self.cluster, now)
        self._due = self._first_due()

    def next_deadline(self) -> float | None:
        """Return when the next `Tick` is due, or None."""
        return self._due

    def _first_due(self) -> float | None:
        if self.store_error is not None:
            return None
        lease_ends, row_due = self._leases.first, self.registry.deadlines.first
        if lease_ends is None:
            return row_due  # there is no lease to check, and so no reason to check the clock regularly
        return min(lease_ends, self._sleep_watch.check_at, lease_ends if row_due is None else row_due)

    def handle(self, event: events.Event, now: float) -> Batch:
        """Decide what follows from one event, at `now` in seconds of a clock that never goes back."""
        if self.store_error is None:
            # After a sleep, the messages that came meanwhile are read one by one, and each comes late. To put off all
            # deadlines for each would cost too much. A tick acts on deadlines, so it always puts them off first.
            least_s = 0.0 if type(event) is events.Tick else POSTPONED_EVERY_S
            if self._sleep_watch.on_event(self._due, least_s, self.policy, now):
                self._leases.shift(self._wake(now))
            if type(event) is events.Reported:
                batch = self._answer_heartbeat(event, now)
                if batch is not None:
                    return batch
        decision = Decision(self.cluster, now)
        self._handlers[type(event)](event, decision)
        return self._conclude(decision)

    def _answer_heartbeat(self, event: events.Reported, now: float) -> Batch | None:
        """Answer a heartbeat without news, without a decision and the table; None if the report may be more than that.

        Reports of steps are no news, since each heartbeat has them, but they may show that training has stalled. Then
        the table is asked here.
        """
        run, member = self._sessions.get(event.session, (None, None))
        observed = event.observed
        if run is None or member is None or not observed.beat or not observations.has_no_news(run, member, observed):
            return None
        heartbeat_s = self._heartbeat_s
        if self._record_heard(run, member, observed, heartbeat_s, now) and observations.steps_have_consequences(run):
            decision = Decision(self.cluster, now)
            decision.send(run, member)
            self._advance(run, decision)
            return self._conclude(decision)
        if self._due is None or now >= self._due:  # otherwise `_due` stands: the heartbeat only extends a lease
            self._due = self._first_due()
        last, revision = member.session.sent, member.session.sent_revision
        sent = send_desired(event.session, run, member, heartbeat_s, now)
        is_unchanged = member.session.sent_revision == revision and _is_renewal(sent.message, last)
        return Batch((), (sent,), repeats=is_unchanged)

    def _conclude(self, decision: Decision) -> Batch:
        """Return the batch of a decision. While the store fails there are no records, and no goal is sent."""
        if any(isinstance(record, HostJudged) for record in decision.records):
            for run in list(self.registry.runs.values()):
                self._advance(run, decision)  # nodes of any run may be on a host that was judged
        for ending in decision.endings:
            self._sessions.pop(ending.session, None)
        if any(isinstance(record, NodeLost) for record in decision.records):
            lease_s = self.policy.heartbeat_s * self.policy.heartbeats_per_lease
            self._farewells_until = decision.now + FAREWELL_LEASES * lease_s
        self._due = self._first_due()
        if self.store_error is not None:
            reports = (ReportDegraded(session, Degraded(clip(self.store_error))) for session in decision.recipients)
            return Batch((), (*decision.endings, *reports), at_once=True)
        messages = decision.messages(self._heartbeat_s)
        return Batch(tuple(decision.records), (*decision.endings, *messages), looks=tuple(decision.looks))

    def _wake(self, now: float) -> float:
        """Put off all deadlines but the leases by the time that the coordinator slept; return it in seconds.

        An outage of the store looks like a sleep, since `handle` does not call the watch meanwhile.
        """
        by = self._sleep_watch.wake(self.policy, now)
        for run in self.registry.runs.values():
            run.postpone(by, now)
            for member in run.members.values():
                member.lease.awaited_from = min(member.lease.awaited_from + by, now)
        return by

    # Events

    def _connect(self, event: events.Connected, decision: Decision) -> None:
        join = event.join
        try:
            admission.check_room(len(self._sessions), self.policy.nodes_max)
            run = self._run_for(event, decision)
            member = self._enroll(run, event, decision)
        except admission.RefusedError as error:
            decision.endings.append(Refuse(event.session, error.refused, join.job, join.node))
            if error.refused.retry and join.job in self.jobs:
                refused = RefusedNode(join.offer.host, error.refused.message, decision.now)
                self.jobs[join.job].gathering.record_refusal(join.node, refused)
            return
        run.gathering.refused.pop(join.node, None)
        self._sessions[event.session] = (run, member)
        self._observe(run, member, join.observed, decision)
        decision.send(run, member)
        self._advance(run, decision)

    def _report(self, event: events.Reported, decision: Decision) -> None:
        run, member = self._sessions.get(event.session, (None, None))
        if run is None or member is None:
            return  # its session was just refused or replaced
        (decision.send if event.observed.beat else decision.notify)(run, member)
        self._observe(run, member, event.observed, decision)
        self._advance(run, decision)

    def _disconnect(self, event: events.Disconnected, decision: Decision) -> None:
        run, member = self._sessions.pop(event.session, (None, None))
        if run is None or member is None:
            return
        member.session.id, member.session.closed_at = None, decision.now
        run.roll.place(member)
        if member.state is MemberState.RELEASED or run.durable.state.ended:
            self._forget(run, member, decision)
        else:
            if decision.now >= self._sleep_watch.closes_count_from:
                self._leases.shorten(run, member, decision.now)
            self._sleep_watch.expect_return(self.policy, decision.now)
        self._advance(run, decision)

    def _revoke(self, event: events.TokensRevoked, _: Decision) -> None:
        for run in self.registry.runs.values():
            for member in run.members.values():
                member.session.revoked |= member.session.token in event.tokens

    def _carry_out(self, event: events.AdminRequested, decision: Decision) -> None:
        if self.store_error is not None:
            problem = f"the coordinator cannot write its state ({self.store_error})"
            text = f"not done: {problem}. Earlier requests may still take effect."
            decision.endings.append(Answer(event.session, AdminResult.CANNOT_RECORD, text))
            return
        reply = admin.carry_out(event.request, decision)
        for run in reply.touched:
            self._advance(run, decision)
            self._forget_absent(run, decision)
            self.registry.drop_if_over(run)
        decision.endings.append(Answer(event.session, reply.result, reply.text))

    def _store_failed(self, event: events.StoreFailed, _: Decision) -> None:
        self.store_error = event.reason

    def _store_recovered(self, _: events.StoreRecovered, decision: Decision) -> None:
        """Make the decisions that had to wait while the store failed; that time counts against no node.

        Reports were read meanwhile, so a node that was not heard gets one more lease, however long the store failed.
        """
        if self.store_error is None:
            return
        self.store_error = None
        self._wake(decision.now)
        for run in self.registry.runs.values():
            self._leases.extend_after_outage(run, self._heartbeat_s, decision.now)
        for run, member in self._sessions.values():
            if not member.lease.expired:  # a silent node is sent nothing until it is heard
                decision.send(run, member)
        for run in list(self.registry.runs.values()):
            self._advance(run, decision)

    def _change_policy(self, event: events.PolicyChanged, decision: Decision) -> None:
        """Decide by a new policy. Nodes are sent their new heartbeat at once, and lateness counts anew from now on."""
        self.cluster.policy = event.policy
        self._sleep_watch.schedule_check(self.policy, decision.now)
        for run in self.registry.runs.values():
            run.policy = event.policy
            run.followed += 1
        for run, member in self._sessions.values():
            if not member.lease.expired:
                member.lease.awaited_from, member.lease.answer_late_s = decision.now, 0.0
                decision.send(run, member)
        for run in list(self.registry.runs.values()):
            self._advance(run, decision)

    def _record_answers(self, event: events.Looked | events.Compared, decision: Decision) -> None:
        """Record workers' answers. While the store fails they are dropped, and the workers are asked again later."""
        run = self.registry.runs.get(event.run)
        if run is not None and self.store_error is None and run.watching.record_answers(event, decision.now):
            for touched in (*releases.drain_laggard(run, decision), run):
                self._advance(touched, decision)

    def _tick(self, _: events.Tick, decision: Decision) -> None:
        if self.store_error is not None:
            return
        touched: dict[str, Run] = {}
        for run_id, node in self._leases.pop_due(decision.now):
            run = touched[run_id] = self.registry.runs[run_id]
            self._expire(run, run.members[node], decision)
        touched |= {self.jobs[job].id: self.jobs[job] for job in self.registry.deadlines.pop_due(decision.now)}
        for run in touched.values():
            self._advance(run, decision)  # a round that is formed now ends the join timeouts
            for node in run.gathering.join_timeouts.pop_due(decision.now):
                releases.release_timed_out(run, run.members[node], decision)
            self._advance(run, decision)

    # Members

    def _run_for(self, event: events.Connected, decision: Decision) -> Run:
        """Find the run that a node belongs to, or open one. Raises `admission.RefusedError`."""
        run = admission.run_to_join(self.cluster, event, self.store_error, decision.now)
        if run is not None and not admission.is_replaceable(run, event.join):
            return run
        if run is not None:
            run.replaced = True
            self._advance(run, decision)  # which ends it
        return self.registry.open(event.join, self.store_error, decision)

    def _enroll(self, run: Run, event: events.Connected, decision: Decision) -> Member:
        """Make the node a member, or give a member that is back its new session. Raises `RefusedError`."""
        join = event.join
        known = run.members.get(join.node)
        if known is None or known.incarnation != join.incarnation:
            younger = observations.new_member(event, decision.now)
            if known is not None:
                self._replace(run, known, younger, decision)
            known = observations.add_member(run, younger, join, decision)
        elif known.session.id is not None:
            decision.close(known)  # the node has given up this session, whose end was not seen yet
            del self._sessions[known.session.id]
        observations.begin_session(run, known, event, decision.now)
        return known

    def _replace(self, run: Run, known: Member, younger: Member, decision: Decision) -> None:
        """Remove the older of two processes with one node id: it counts as lost, and its session is refused."""
        if known.session.id is not None:
            refused = admission.superseded(run.job, younger).refused
            decision.endings.append(Refuse(known.session.id, refused, run.job, known.node))
            del self._sessions[known.session.id]
            known.session.id = None
        if run.durable.state.ended or known.state is MemberState.RELEASED:
            self._forget(run, known, decision)
        else:
            reason = f"replaced by a younger nodeclient with the same node id, from {younger.session.peer_address}"
            actions.lose(run, known, reason, decision)

    def _observe(self, run: Run, member: Member, observed: Observed, decision: Decision) -> None:
        """Record that a member lives, and all of its report."""
        now = decision.now
        if run.roll.all_silent:  # the coordinator was cut off: it hears the others again soon
            self._leases.renew_all(run, self._heartbeat_s, now)
        self._record_heard(run, member, observed, self._heartbeat_s, now)
        if observations.record_report(run, member):
            decision.notify_all(run)

    def _record_heard(self, run: Run, member: Member, observed: Observed, heartbeat_s: float, now: float) -> bool:
        """Record that a member lives, and its report; return whether it has steps, or a section goes on or ends.

        Ages in a report count from the lease's `heard_at`, so both are always set together.
        """
        run.roll.heard_at = now
        # While this process slept, the node could hear nothing from it.
        unanswered_s = min(observed.heard_s, now - self._sleep_watch.woke_at)
        member.lease.record_heard(unanswered_s, self.policy, now)
        self._leases.renew(run, member, heartbeat_s, now)
        before, member.observed = member.observed, observed
        run.keeping.record_progress(member)
        has_progress = bool(observed.steps) or observed.section is not None or before.section is not None
        if has_progress:
            observations.record_steps(run, member, before)
        return has_progress

    @property
    def _heartbeat_s(self) -> float:
        return self.policy.heartbeat_for(len(self._sessions))

    def _expire(self, run: Run, member: Member, decision: Decision) -> None:
        """Act on the end of a lease. The table decides about nodes of a round at work, as all of them may be silent."""
        if run.durable.state.ended or member.state is MemberState.RELEASED:
            self._forget(run, member, decision)
            return
        member.lease.expired = True
        run.roll.expired_at = decision.now
        run.roll.place(member)
        if run.roll.all_silent:
            run.roll.others_heard = any(other.roll.connected for other in self.jobs.values())
        at_work = member.durable.in_round and run.durable.state.at_work
        if member.durable.outcome is None and not at_work:
            actions.lose(run, member, actions.loss_reason(member), decision)

    def _forget(self, run: Run, member: Member, decision: Decision) -> None:
        """Remove a member. This needs no record, since its own outcome or the run's is on record already."""
        self._leases.discard((run.id, member.node))
        run.remove(member)
        decision.close(member)
        self.registry.drop_if_over(run)

    # Consequences

    def _advance(self, run: Run, decision: Decision) -> None:
        """Record the news of a run's nodes, and take the rows of its table that are due, unless the store fails."""
        if self.store_error is not None or run.durable.state.ended:
            return
        observations.record_claims(run, decision)
        self.registry.plan(run, take_due_rows(run, decision))
        self._leases.drop_lost(run, decision.records)
        self._forget_absent(run, decision)

    def _forget_absent(self, run: Run, decision: Decision) -> None:
        """Remove the members of an ended run that are not connected; the others follow when their sessions end."""
        if run.durable.state.ended:
            for member in [member for member in run.members.values() if member.session.id is None]:
                self._forget(run, member, decision)


def _is_renewal(message: Desired, last: Desired | None) -> bool:
    """Whether a message is the last one, or differs from it only in quiet fields: the heartbeat and the lease.

    Then it rests on the same records, and need not wait for newer ones. Heartbeats and leases grow as thousands of
    nodes join.
    """
    if message is last or last is None:
        return message is last
    return replace(last, **{name: getattr(message, name) for name in _QUIET}) == message


_QUIET = marked(Desired, Mark.QUIET)
