"""Invariants of the coordinator's decisions: which nodes it waits for, gives up and lets in.

They are checked by the messages that it received, and by what happened in the world. `rounds` checks what follows from
the records alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from coordinatord.core.journal import Decided
from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.events import Connected, Event, Reported, StoreFailed, StoreRecovered
from coordinatord.core.rounds.state.member import Member, MemberState
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.records import (
    NodeJoined,
    NodeLeftBehind,
    NodeLost,
    NodeReleased,
    Record,
    RoundEnded,
    RoundFormed,
    RoundStopped,
    RunOpened,
)
from coordinatord.protocol.messages import Degraded, Desired, Join, Phase, RefusalCode, Refused, Result, ScaleUp
from tests.sim.invariants.checkpoint_waits import CheckpointWaitLaws
from tests.sim.invariants.departures import DepartureLaws
from tests.sim.invariants.laws import Facts, Laws
from tests.sim.invariants.preparing_nodes import PreparingLaws
from tests.sim.invariants.root_cause import ALIKE_S, REMEMBERED_S, ROUGHLY
from tests.sim.invariants.rounds import WELL_FOR_S
from tests.sim.network import Session
from tests.sim.workers import Round

if TYPE_CHECKING:  # the world imports its invariants
    pass


class StoreOutages:
    """The spans of one world in which nothing could be recorded, in the queue's `now`."""

    def __init__(self) -> None:
        self.last_at = -1.0
        """When the coordinator last could not decide."""
        self.over_at: float | None = None
        """When it last could decide again in this life; None if it always could."""
        self._spans: list[tuple[float, float]] = []
        self._since: float | None = None

    def note_event(self, event: Event, now: float, *, troubled: bool) -> None:
        """Note an event that the coordinator is about to handle, and whether it is degraded already."""
        if not troubled and not isinstance(event, StoreFailed):
            return
        self.last_at = self.over_at = now
        if isinstance(event, StoreRecovered):
            self._close(now)
        elif self._since is None:
            self._since = now

    def end(self, now: float) -> None:
        """Note that the coordinator has died: the next life begins with a store that works."""
        self._close(now)
        self.over_at = None

    def _close(self, now: float) -> None:
        if self._since is not None:
            self._spans.append((self._since, now))
            self._since = None

    def untroubled_s(self, since: float, now: float) -> float:
        """Return how many seconds of those from `since` to `now` the coordinator could decide in."""
        spans = self._spans if self._since is None else [*self._spans, (self._since, now)]
        return now - since - sum(max(0.0, end - max(begin, since)) for begin, end in spans)


IN_FLIGHT_S = 2.0
"""The time within which a message of a healthy node arrives."""


class DecisionLaws(Laws):
    """Watches one world."""

    def __init__(
        self, facts: Facts, preparing: PreparingLaws, waits: CheckpointWaitLaws, departures: DepartureLaws
    ) -> None:
        super().__init__(facts)
        self._preparing, self._waits, self._departures = preparing, waits, departures
        self._joins: dict[tuple[str, int], tuple[Join, float]] = {}
        """The first `Join` and its time, by node and incarnation."""
        self._joined_at: dict[tuple[str, int], float] = {}
        """When each first joined in this life of the coordinator."""
        self._granted: dict[tuple[str, str], float] = {}
        """The lease of each member when nothing could be recorded, as it was last seen; keyed by run and node."""
        self._heard: dict[tuple[str, int], float] = {}
        """When each node last heard the coordinator, by its own report."""
        self._sent_at: dict[str, float] = {}
        """When each node last sent anything to the coordinator."""
        self._event_at = 0.0
        """When the coordinator last received anything."""
        self._outages = StoreOutages()
        self._dozed_at = 0.0
        """When it last received something after a pause longer than its timer allows."""
        self._rounds: dict[str, int] = {}
        self._decided_at: dict[str, float] = {}
        """The last round of each run that was decided, and when that was."""
        self._revived: dict[tuple[str, str], float] = {}
        """When a node was silent, as all were, and another one was heard again; keyed by run and node."""
        self._stopped: dict[Round, float] = {}
        """When each round was stopped, as far as the coordinator was awake since."""
        self._arrived_at: dict[str, float] = {}
        """When the first node came to each run after its last round was formed; it may be gone by now."""
        self._ended_at: dict[str, float] = {}
        """When the last round of each run ended."""
        self._out: set[tuple[Round, str, int]] = set()
        """Nodes that were lost or left behind in a round, with their incarnation."""
        self._remembered: dict[str, int] = {}
        """The latest round that a node came with, by run."""
        self._recorded_at = self._dozed_s = 0.0
        self._began_at, self._last_at = 0.0, 0.0
        """When the coordinator last started, and when its forerunners last recorded anything."""

    # Events

    def joined(self, join: Join) -> None:
        """Note that a node has come, or come back."""
        key = (join.node, join.incarnation)
        first = self._joins[key][1] if key in self._joins else self.world.queue.now
        self._joins[key] = (join, first)
        self._joined_at.setdefault(key, self.world.queue.now)

    def note_event(self, event: Event) -> None:
        """Note an event that the coordinator is about to handle."""
        now, machine = self.world.queue.now, self.world.daemon.machine
        if now - self._event_at > machine.policy.heartbeat_s / ROUGHLY:
            self._dozed_at, self._dozed_s = now, self._dozed_s + now - self._event_at
        self._outages.note_event(event, now, troubled=machine.store_error is not None)
        self._event_at = now
        self._judge_forgiven()
        if isinstance(event, Connected):
            node, incarnation, observed = event.join.node, event.join.incarnation, event.join.observed
        elif isinstance(event, Reported) and event.session in machine._sessions:
            member = machine._sessions[event.session][1]
            node, incarnation, observed = member.node, member.incarnation, event.observed
        else:
            return
        run = machine.jobs.get("job")
        if run is not None and run.roll.all_silent:
            self._revived |= {(run.id, member.node): now for member in run.roll.in_state(MemberState.SILENT)}
        self._heard[node, incarnation], self._sent_at[node] = now - observed.heard_s, now

    def _judge_forgiven(self) -> None:
        """Check that nodes which were not heard within a lease after the store recovered count as silent or lost."""
        now, machine, policy = self.world.queue.now, self.world.daemon.machine, self.world.scenario.policy
        resumed_at = self._outages.over_at
        if machine.store_error is not None:
            self._granted = {
                (run.id, node): 0.0 if member.session.sent is None else member.session.sent.lease_s
                for run in machine.jobs.values()
                for node, member in run.members.items()
            }
            return
        may_come_back = now - self._began_at - self._dozed_s < policy.restart_grace_s / ROUGHLY + ALIKE_S
        if resumed_at is None or self._dozed_at > resumed_at or may_come_back:
            return
        for run in machine.jobs.values():
            for node, member in run.members.items():
                since = max(resumed_at, self._revived.get((run.id, node), 0.0))
                granted = 0.0 if member.session.sent is None else member.session.sent.lease_s
                # The lease of that time began anew when the store recovered; the next one may be shorter.
                granted = max(granted, self._granted.get((run.id, node), 0.0))
                lease = max(granted, member.lease.length_s(policy, policy.heartbeat_s))
                # A daemon that was stopped for less than a heartbeat hears its nodes before its own timer.
                most_s = lease / ROUGHLY + policy.heartbeat_s
                late = self._sent_at.get(node, -1.0) < since and now - since > most_s
                self.check(not late or member.lease.expired, "%s is counted on %.1f s after trouble", node, now - since)

    # Decisions

    def decided(self, records: Sequence[Record]) -> None:
        """Check what was decided by the state of the world at this moment, durable or not."""
        stopped = next((record for record in records if isinstance(record, RoundStopped)), None)
        for run, record in self.facts.of_runs(records):
            if isinstance(record, NodeJoined | NodeLost | NodeLeftBehind | NodeReleased):
                self._judge_node(run, record, stopped)
            else:
                self._judge_round(run, record)

    def _judge_round(self, run: Run, record: Record) -> None:
        match record:
            case RunOpened():
                self._judge_opened(record)
            case RoundFormed():
                self._judge_forming(run, record)
            case RoundStopped():
                self._judge_stopping(run, record)
            case RoundEnded():
                self._judge_over(record)

    def _judge_node(self, run: Run, record: Record, stopped: RoundStopped | None) -> None:
        match record:
            case NodeJoined():
                self._judge_joined(run, record)
            case NodeLost():
                self._judge_lost(run, record, stopped)
            case NodeLeftBehind():
                self._judge_left_behind(run, record)
            case NodeReleased():
                self._judge_released(run, record)

    def _judge_opened(self, record: RunOpened) -> None:
        old = self.facts.replica.jobs.get(record.job)
        joins = [join for (node, _), (join, _) in self._joins.items() if node == record.opener]
        again = old is not None and joins[-1].observed.run == old.id and old.spec == record.spec
        self.check(not again, "%s opens a run again that it was in", record.opener)

    def _judge_joined(self, run: Run, record: NodeJoined) -> None:
        join, _ = self._joins[record.node, record.incarnation]
        self.check(join.spec == run.spec, "%s is let in with %s", record.node, join.spec)
        self._arrived_at.setdefault(run.id, self.world.queue.now)

    def _judge_forming(self, run: Run, record: RoundFormed) -> None:
        self._rounds[run.id] = record.round
        nodes = {ranks.node for ranks in record.nodes}
        known = self.facts.replica.jobs.get(record.job)
        before = set(known.order) if known is not None and known.id == run.id else set()
        new = nodes - before
        left = {member.node for member in run.roll.in_state(MemberState.READY)}
        self.check(not (new and left & before), "%s are left out for newcomers", left & before)
        for node in nodes:
            observed = run.members[node].observed
            self.check(not observed.phase.has_workers, "%s is given a round over its workers", node)
            self.check(not observed.leaving, "%s is given a round, and wants to leave", node)
            self.check(observed.phase is not Phase.PREPARING, "%s is given a round while it prepares", node)
        if len(nodes) < run.spec.nodes_max:
            self.check(
                not run.roll.count(MemberState.DISCONNECTED), "a round is formed without a node that may be back"
            )
            if arrivals := {node for node in new if self._is_arrival(run, run.members[node])}:
                self._judge_settled(run, arrivals)
        self._arrived_at.pop(run.id, None)
        self._decided_at[run.id] = self.world.queue.now

    def _is_arrival(self, run: Run, member: Member) -> bool:
        """Whether a round waits for others that may come with this node.

        A node that was ready as a spare when the last round was formed is no arrival: it takes over at once, since
        training stands still meanwhile. A quarantined node is none either: it is taken once too few others are there.
        """
        was_spare = self._preparing.ready_at(member) < self._decided_at.get(run.id, -math.inf)
        return not (was_spare or member.readiness.quarantined)

    def _judge_settled(self, run: Run, new: set[str]) -> None:
        now, policy, scenario = self.world.queue.now, self.world.scenario.policy, self.world.scenario
        came = [self._joins[node, run.members[node].incarnation][1] for node in new]
        if run.roll.count(MemberState.PREPARING):  # those that became ready wait for it as if they had just arrived
            came = [self._preparing.ready_at(run.members[node]) for node in new]
        ready_at = self._preparing.ready_after(self._decided_at.get(run.id, now))
        earliest = min(*came, self._arrived_at.get(run.id, now), ready_at)
        last, first = now - max(came), now - earliest
        settled = last >= ROUGHLY * policy.settle_s or first >= ROUGHLY * policy.settle_max_s
        in_vain = max(first, now - self._ended_at.get(run.id, now)) >= ROUGHLY * scenario.join_timeout_s
        self.check(settled or in_vain, "a round is formed %.2f s after an arrival", last)

    def _judge_stopping(self, run: Run, record: RoundStopped) -> None:
        key = (record.run, record.round)
        self._stopped[key] = self.world.queue.now
        self.facts.life_of_stop[key] = self.world.daemon.life
        early = self._too_soon(run) if record.condition == "arrived" else ""
        self.check(not early, "round %d is stopped for arrivals: %s", record.round, early)
        if record.condition == "success_unwritten":
            writes = self.world.scenario.persist_every_s is not None
            self.check(writes, "round %d waits for a disk, and no node writes to one", record.round)
        elif record.planned and not run.leaving and not run.durable.stop_asked:
            done = any(member.durable.in_round and member.durable.succeeded for member in run.members.values())
            self.check(not done, "round %d is stopped for arrivals, and about to succeed", record.round)

    def _too_soon(self, run: Run) -> str:
        """Return why no round may be stopped for arrivals now; empty if one may."""
        ready, now, policy = run.roll.in_state(MemberState.READY), self.world.queue.now, self.world.scenario.policy
        came = [self._joins[member.node, member.incarnation][1] for member in ready]
        if not came:
            return "none is ready"
        if run.spec.scale_up is ScaleUp.NEVER:
            return "the job wants none"
        if run.spec.scale_up is ScaleUp.AT_CHECKPOINT and (why := self._waits.too_soon(run, min(came))) is not None:
            return why
        if run.roll.round_size + len(came) >= run.spec.nodes_max:
            return ""
        settled = now - max(came) >= ROUGHLY * policy.settle_s or now - min(came) >= ROUGHLY * policy.settle_max_s
        return "" if settled else f"one came {now - max(came):.2f} s ago, and more may follow"

    def _judge_lost(self, run: Run, record: NodeLost, stopped: RoundStopped | None) -> None:
        now, policy = self.world.queue.now, self.world.scenario.policy
        key = (run.id, self._rounds.get(run.id, 0))
        self._out.add((key, record.node, record.incarnation))
        self.facts.lost_of.add(key)
        if record.reason.startswith("replaced by"):
            return
        self._departures.judges(record, key)
        least = ROUGHLY * policy.reconnect_grace_s
        closed = record.reason.startswith("its connection")
        heard = self._heard.get((record.node, record.incarnation), 0.0)
        patient = record.silent_s >= least or now - heard >= ROUGHLY * policy.heartbeats_per_lease * policy.heartbeat_s
        self.check(not closed or patient, "%s was lost %.2f s after it closed", record.node, record.silent_s)
        stops = stopped is not None and stopped.reason.startswith("lost")
        in_touch = any(member.session.id is not None and not member.lease.expired for member in run.members.values())
        self.check(not stops or in_touch, "%s is lost when nobody is in touch", record.node)
        if closed or not stops:
            return
        others = [self._sent_at.get(node, -1.0) for node in [*run.durable.order, *run.members] if node != record.node]
        last = max(others, default=-1.0)
        alone = now - last > 2 * policy.heartbeat_s / ROUGHLY + 0.2
        self.check(not (alone and others), "%s is lost when nobody is heard for %.1f s", record.node, now - last)
        revived = self._revived.get((run.id, record.node))
        if revived is not None and heard < revived:
            lease = ROUGHLY * policy.heartbeats_per_lease * policy.heartbeat_s
            self.check(now - revived > lease, "%s is lost, and all were silent until now", record.node)

    def _since(self, at: float) -> float:
        """Return a time such that the coordinator, by its records, was up for as long as has passed since then."""
        return at + self._began_at - max(self._last_at, at) if at < self._began_at else at

    def _judge_left_behind(self, run: Run, record: NodeLeftBehind) -> None:
        key = (record.run, record.round)
        self._out.add((key, record.node, record.incarnation))
        self.facts.lost_of.add(key)
        least = self.world.scenario.stop_timeout_s + self.world.scenario.policy.stop_limit_s
        waited = self._outages.untroubled_s(self._since(self._stopped.get(key, 0.0)), self.world.queue.now)
        self.check(waited >= ROUGHLY * least, "%s is left behind after %.1f s", record.node, waited)
        for host in self.world.hosts.values():
            if (host.node, host.incarnation) == (record.node, record.incarnation):
                member = run.members.get(record.node)
                well = host.well and self.world.queue.now - host.troubled_until > WELL_FOR_S
                well = well and member is not None and member.session.id is not None and not member.lease.expired
                idle = (agent := host.agent) is not None and not agent.phase.has_workers
                idle = idle and agent is not None and host.clock.read() - agent._sweeping.over_at > IN_FLIGHT_S
                late = self.world.scenario.network.harsh or self.world.faults["network slow"] > 0
                self.check(not (well and idle) or late, "%s has no workers and is left behind", record.node)

    def _judge_released(self, run: Run, record: NodeReleased) -> None:
        if record.outcome.result is Result.TIMED_OUT:
            leaves = record.node in run.members and run.members[record.node].leaves
            self.check(not leaves, "%s is to leave, and waited in vain", record.node)
            joined_at = self._joined_at.get((record.node, record.incarnation), 0.0)
            waited = self._outages.untroubled_s(max(joined_at, self._ended_at.get(run.id, 0.0)), self.world.queue.now)
            enough = waited >= ROUGHLY * self.world.scenario.join_timeout_s
            self.check(enough, "%s was let go after %.1f s", record.node, waited)

    def _judge_over(self, record: RoundEnded) -> None:
        """Check that no worker of a round that is over lives, except on nodes that were given up."""
        key, now = (record.run, record.round), self.world.queue.now
        self._ended_at[record.run] = now
        training = self.world.trainings.get(key)
        for host in training.hosts.values() if training is not None else ():
            alive = host.workers.round == key and host.workers.alive and host.agent is not None
            given_up = (key, host.node, host.incarnation) in self._out
            self.check(not alive or given_up, "round %d is over, and %s has workers", record.round, host.name)
        scenario, daemon = self.world.scenario, self.world.daemon
        most = (scenario.stop_timeout_s + scenario.policy.stop_limit_s) / ROUGHLY + REMEMBERED_S
        slept_at = max(self.facts.slept_at, self._outages.last_at)
        awake = self.facts.life_of_stop.get(key) == daemon.life and slept_at < self._stopped.get(key, now)
        took = now - self._stopped.get(key, now)
        self.check(not awake or took < most, "round %d took %.1f s to end", record.round, took)

    # Records

    def durable(self, record: Record) -> None:
        """Check the number of a first round, by those that nodes have come with."""
        self._recorded_at = self.world.queue.now
        remembered = self._remembered.get(record.run, 0)
        if isinstance(record, NodeJoined):
            self._remembered[record.run] = max(remembered, record.round)
        elif isinstance(record, RoundFormed):
            first = not self.facts.replica.jobs[record.job].order
            self.check(not first or record.round > remembered, "nodes know of round %d of another run", remembered)

    # The coordinator's lives

    def set_back(self, records: Sequence[Record], now: float) -> None:
        """Note that the store holds these records alone: workers of later rounds may live on unknown nodes."""
        members = [member for run in self.facts.replica.jobs.values() for member in run.inside]
        known = {(member.node, member.incarnation) for member in members}
        self._out |= {
            (key, host.node, host.incarnation)
            for key, training in self.world.trainings.items()
            for host in training.hosts.values()
            if (host.node, host.incarnation) not in known
        }

    def crashed(self) -> None:
        """Note that the coordinator has died."""
        self._outages.end(self.world.queue.now)

    def restored(self, machine: Coordinator, past: Sequence[Decided]) -> None:
        """Check what a coordinator that starts knows."""
        self._heard.clear()
        self._sent_at.clear()
        self._joined_at.clear()
        self._revived.clear()
        for run in machine.jobs.values():
            self._rounds[run.id] = run.durable.round
        # The time of its absence counts against no node, so the time since its last record does not.
        self._began_at, self._last_at, self._dozed_s = self.world.queue.now, self._recorded_at, 0.0

    # Messages

    def sent(self, session: Session, message: Desired | Degraded | Refused) -> None:
        """Check that of two processes of one node the younger one stays, unless it was in trouble."""
        if isinstance(message, Refused) and message.code is RefusalCode.SUPERSEDED and not message.retry:
            own = (session.host.node, session.incarnation)
            younger = any(node == own[0] and incarnation > own[1] for node, incarnation in self._joins)
            recently = self.world.queue.now - session.host.troubled_until < WELL_FOR_S or not session.host.well
            self.check(younger or recently, "%s makes way for a process that is older", session.host.name)
