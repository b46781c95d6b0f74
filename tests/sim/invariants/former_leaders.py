"""Invariants of a coordinator that led, and does not know yet that another one leads: it changes nothing.

After `coordinatord --step-down` has revoked its lease, it may go on for a moment. Until it notices, it handles messages
of its nodes, and sends them what is durable. Its decisions of that time have no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from coordinatord.core.rounds.events import Event
from coordinatord.core.rounds.values.records import Record
from coordinatord.protocol.messages import Degraded, Desired, Goal, Refused
from tests.sim.etcd import LEASE_S
from tests.sim.invariants.laws import Facts, Laws
from tests.sim.network import Session
from tests.support.modelled_etcd import changes_history

if TYPE_CHECKING:  # the world has these laws
    from tests.sim.etcd_coordinator import EtcdCoordinator


class FormerLeaderLaws(Laws):
    """Watches all coordinators of one world but the one that leads."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._led_at = 0.0
        """When the present leader began to lead."""

    def led(self) -> None:
        """Note that another coordinator leads from now on."""
        self._led_at = self.world.queue.now

    # etcd

    def wrote(self, by: EtcdCoordinator, body: Mapping[str, Any]) -> None:
        """Check that a transaction that etcd has done is the leader's, if it changes the history."""
        leader = self.world.etcd.leader
        leads = leader is not None and by.is_named_by(leader)
        self.check(leads or not changes_history(body), "%s writes to etcd, and does not lead", by.endpoint)

    def durable(self, record: Record) -> None:
        """Fail: a former leader has made a record durable."""
        self.check(False, "a former leader has made durable: %s", record)

    # Messages

    def note_event(self, event: Event) -> None:
        """Check that it goes on only as long as its lease."""
        since_s = self.world.queue.now - self._led_at
        self.check(since_s < LEASE_S, "another one has led for %.1f s, and a former one handles %s", since_s, event)

    def sent(self, session: Session, message: Desired | Degraded | Refused) -> None:
        """Check that the round in its message is durable."""
        if not isinstance(message, Desired) or message.goal is not Goal.RUN:
            return
        formed = self.facts.formed.get((message.run, message.round))
        part = message.assignment
        mine = None if formed is None or part is None else formed.nodes[part.group_rank]
        same = (
            mine is not None
            and part is not None
            and (mine.node, mine.first_rank) == (session.host.node, part.first_rank)
        )
        self.check(same, "%s is sent another round %d", session.host.name, message.round)
