"""Invariants of nodes' goals and actions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinatord.protocol.messages import Goal, Phase, Result
from nodeclient.core import events
from nodeclient.core.effects import Effect, Exit, HaltWorkers, SaveKept, Start, Terminate
from nodeclient.core.sweeping import FREE_WITHIN_S
from tests.sim.invariants.laws import Facts, Laws
from tests.sim.workers import Round

if TYPE_CHECKING:  # the world imports its invariants
    from tests.sim.host import Host


class NodeLaws(Laws):
    """Watches the nodes of one world."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._sent: dict[tuple[str, int, str], int] = {}
        """The latest round of each run that an incarnation of a host's nodeclient has received."""
        self._started: set[tuple[str, int, Round]] = set()

    def happens(self, host: Host, event: events.Event) -> None:
        """Check a desired state that a node receives."""
        if not isinstance(event, events.DesiredReceived):
            return
        desired = event.desired
        self.check(bool(desired.reason), "%s receives no reason", host.name)
        key = (host.name, host.incarnation, desired.run)
        if desired.round > self._sent.get(key, -1):
            self._sent[key] = desired.round
            self.world.touch()
            self.world.trace.note(
                "%s: receives %s round %d: %s", host.name, desired.goal, desired.round, desired.reason
            )

    def does(self, host: Host, effect: Effect) -> None:
        """Check the start of a round, the end of its workers, and that of a nodeclient."""
        match effect:
            case Start():
                self._judge_start(host, effect)
            case SaveKept() | HaltWorkers() if host.memory is not None and not host.memory.ending:
                self._judge_stop(host)
            case Terminate() if host.memory is None or not host.memory.ending:  # otherwise it was noted a moment ago
                self._judge_stop(host)
            case Exit():
                self._judge_exit(host, effect)

    def _judge_start(self, host: Host, start: Start) -> None:
        key = (start.run, start.round)
        alive = host.workers.alive
        self.check(host.prepared, "%s starts round %d, and still imports", host.name, start.round)
        self.check(not alive, "%s starts round %d over workers of %s", host.name, start.round, host.workers.round)
        waited = self.world.queue.now - host.workers.ended_at
        is_free = self.world.queue.now >= host.workers.gpu_free_at or waited >= FREE_WITHIN_S
        self.check(is_free, "%s starts round %d over memory of the last one", host.name, start.round)
        latest = self._sent[host.name, host.incarnation, start.run]
        self.check(start.round == latest, "%s starts round %d, and was sent %d", host.name, start.round, latest)
        once = (host.name, host.incarnation, key)
        self.check(once not in self._started, "%s starts round %d twice", host.name, start.round)
        self._started.add(once)
        ours = [ranks for ranks in self.facts.formed[key].nodes if ranks.node == host.node]
        self.check(len(ours) == 1, "%s starts round %d, which it is not in", host.name, start.round)
        self.check(ours[0].first_rank == start.assignment.first_rank, "%s starts with other ranks", host.name)

    def _judge_stop(self, host: Host) -> None:
        """Check that a node ends its workers for a reason: a goal, a failure, or an outage that is too long."""
        agent = host.agent
        assert agent is not None
        desired = agent._desired
        here = desired is not None and (desired.run, desired.round) == host.workers.round
        if desired is None or desired.goal is not Goal.RUN or not here:
            return
        if agent._group.exits.failure(0.0) is not None:
            return
        self.facts.disturbed.add(host.workers.round)
        if not agent._leaving.leaves and agent._leaving.exit is None:
            alone = host.clock.read() - agent._connection.searching_since
            grace = self.world.scenario.policy.outage_grace_s
            self.check(alone >= grace, "%s ends its workers, cut off for %.1f s", host.name, alone)

    def _judge_exit(self, host: Host, end: Exit) -> None:
        self.check(not host.workers.alive, "%s ends with workers alive", host.name)
        self.check(bool(end.message), "%s ends without a message", host.name)
        if end.code == 0:
            well = any(outcome.result is Result.SUCCEEDED for outcome in self.facts.replica.outcomes.values())
            done = self._has_done_all(host)
            self.check(well or done, "%s exits with 0, and no run has succeeded", host.name)

    def _has_done_all(self, host: Host) -> bool:
        """Whether all workers of the round that a host was last in were its own, and exited with 0."""
        key = host.workers.round
        training = self.world.trainings.get(key)
        alone = key in self.facts.formed and len(self.facts.formed[key].nodes) == 1
        return alone and training is not None and training.exited_well == self.world.scenario.workers.each

    def judge_end(self) -> None:
        """Check that nothing is stuck, some time after all faults have ended."""
        for run in self.world.daemon.machine.jobs.values():
            stands = run.durable.state.ended or run.durable.state.value == "running"
            self.check(stands, "stuck: %s", self.world.situation)
        for host in self.world.hosts.values():
            agent = host.agent
            if agent is not None:
                has_reason = agent._desired is not None and bool(agent._desired.reason)
                self.check(has_reason, "%s waits without a reason", host.name)
                moving = agent.phase in {Phase.STARTING, Phase.STOPPING}
                self.check(not moving, "stuck: %s is %s; %s", host.name, agent.phase, self.world.situation)
