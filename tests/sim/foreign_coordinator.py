"""A coordinator that has another history, at an address where nodes look for their own one.

It checks that it lets no node in that may still find its own coordinator. Nodes that it may let in are not played on.
"""

from __future__ import annotations

from coordinatord.core.rounds.effects import Refuse
from coordinatord.core.rounds.events import Connected
from coordinatord.protocol.messages import Join, RefusalCode, Refused
from tests.sim.coordinator import OWN_ADDRESS, SimulatedCoordinator
from tests.sim.network import DOWN, Message, Session


class ForeignCoordinator(SimulatedCoordinator):
    """One coordinatord that knows no run of the world's."""

    asked = 0
    """How often a node has come that was in a run."""
    would_take = 0
    """How many of these it would have let in."""

    def start(self) -> None:
        """Be up for good; it is not the coordinator that decides."""
        self.up = True

    def crash(self, *, host: bool = False) -> None:
        """Go on: faults are those of the nodes' own coordinator."""

    def _write(self) -> None:
        """Keep nothing."""

    def receive(self, session: Session, message: Message | None) -> None:
        """Answer a node that joins, and end its session."""
        if not isinstance(message, Join):
            return
        refused = Refused(RefusalCode.LIMIT, "this is not the coordinator of the world", retry=True)
        if message.observed.run:
            refused = self._judge(session, message) or refused
        self._world.wires.send(session, DOWN, refused)

    def _judge(self, session: Session, join: Join) -> Refused | None:
        self.asked += 1
        connected = Connected(self.asked, join, session.host.address, OWN_ADDRESS, session.host.token)
        (effect,) = self.machine.handle(connected, self.clock.read()).effects
        if isinstance(effect, Refuse):
            return effect.message
        self.would_take += 1
        agent, grace_s = session.host.agent, self._world.scenario.policy.outage_grace_s
        assert agent is not None
        alone_s = session.host.clock.read() - agent._connection.searching_since
        if alone_s < grace_s or join.observed.phase.has_workers:
            raise self._world.failure(f"a stranger takes {session.host.name}, cut off for {alone_s:.1f} s")
        self.machine = type(self.machine)(self._world.scenario.policy, "strange")  # it forgets the node
        return None
