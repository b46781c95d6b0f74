"""Invariants of nodes' goals and actions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coordinatord.core.values.records import RoundFormed
from coordinatord.protocol.messages import Desired, Goal, Phase, Result
from nodeclient.core.effects import Exit, Start
from nodeclient.core.sweeping import FREE_WITHIN_S
from tests.sim.durable_replica import DurableReplica
from tests.sim.workers import Round

if TYPE_CHECKING:  # the world imports its invariants
    from tests.sim.host import Host
    from tests.sim.world import World


class NodeInvariants:
    """Watches the nodes of one world."""

    replica: DurableReplica
    formed: dict[Round, RoundFormed]

    def __init__(self, world: World) -> None:
        self.world = world
        self.genuine: set[Round] = set()
        """Rounds in which a worker failed by itself."""
        self.unseen: set[Round] = set()
        """Rounds of which a node's workers ended while it could not be heard: the coordinator cannot know what came
        first, and may take the failures of their peers for the root cause."""
        self.charged_unseen = 0
        """How many of these rounds were charged. None should be; see "How it is proved" in DESIGN.md."""
        self.disturbed: set[Round] = set()
        """Rounds of which a node ended its workers of its own accord."""
        self._sent: dict[tuple[str, int, str], int] = {}
        """The latest round of each run that an incarnation of a host's nodeclient has received."""
        self._started: set[tuple[str, int, Round]] = set()

    def check(self, holds: bool, text: str, *arguments: Any) -> None:
        """Raise `BrokenError` unless an invariant holds."""
        if not holds:
            raise self.world.failure(text % arguments)

    def received(self, host: Host, desired: Desired) -> None:
        """Check a desired state that a node receives."""
        self.check(bool(desired.reason), "%s receives no reason", host.name)
        key = (host.name, host.incarnation, desired.run)
        if desired.round > self._sent.get(key, -1):
            self._sent[key] = desired.round
            self.world.touch()
            self.world.trace.note(
                "%s: receives %s round %d: %s", host.name, desired.goal, desired.round, desired.reason
            )

    def starts(self, host: Host, start: Start) -> None:
        """Check that a node may start a round."""
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
        ours = [ranks for ranks in self.formed[key].nodes if ranks.node == host.node]
        self.check(len(ours) == 1, "%s starts round %d, which it is not in", host.name, start.round)
        self.check(ours[0].first_rank == start.assignment.first_rank, "%s starts with other ranks", host.name)

    def stops(self, host: Host) -> None:
        """Check that a node ends its workers for a reason: a goal, a failure, or an outage that is too long."""
        agent = host.agent
        assert agent is not None
        desired = agent._desired
        here = desired is not None and (desired.run, desired.round) == host.workers.round
        if desired is None or desired.goal is not Goal.RUN or not here:
            return
        if agent._group.failure(0.0) is not None:
            return
        self.disturbed.add(host.workers.round)
        if not agent._departure.leaves and agent._departure.ending is None:
            alone = host.clock.read() - agent._connection.alone_since
            grace = self.world.scenario.policy.outage_grace_s
            self.check(alone >= grace, "%s ends its workers, cut off for %.1f s", host.name, alone)

    def exits(self, host: Host, end: Exit) -> None:
        """Check how a nodeclient ends."""
        self.check(not host.workers.alive, "%s ends with workers alive", host.name)
        self.check(bool(end.message), "%s ends without a message", host.name)
        if end.code == 0:
            well = any(outcome.result is Result.SUCCEEDED for outcome in self.replica.outcomes.values())
            done = self._has_done_all(host)
            self.check(well or done, "%s exits with 0, and no run has succeeded", host.name)

    def _has_done_all(self, host: Host) -> bool:
        """Whether all workers of the round that a host was last in were its own, and exited with 0."""
        key = host.workers.round
        training = self.world.trainings.get(key)
        alone = key in self.formed and len(self.formed[key].nodes) == 1
        return alone and training is not None and training.exited_well == self.world.scenario.workers.each

    def failed(self, host: Host, key: Round) -> None:
        """Note that a worker fails by itself."""
        del host
        self.genuine.add(key)

    def gone(self, host: Host) -> None:
        """Note that workers of a host are gone, so that their peers fail or hang."""
        if self._hidden(host):
            self.unseen.add(host.workers.round)

    def _hidden(self, host: Host) -> bool:
        """Whether the messages of a host cannot show the coordinator when its workers have ended."""
        daemon, network = self.world.daemon, self.world.scenario.network
        elsewhere = host.session is not None and host.session.at is not daemon
        deaf = not daemon.up or daemon.paused or daemon.machine.store_error is not None or elsewhere
        late = network.harsh or network.spike_chance > 0 or network.spread_s > 0.1 or host.slow_s > 0
        return deaf or late or host.is_cut or host.paused or host.session is None or not host.session.established

    # The end

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
