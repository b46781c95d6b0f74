"""Invariants of a coordinator that led, and does not know yet that another one leads: it changes nothing.

After `coordinatord --step-down` has revoked its lease, it may go on for a moment. Until it notices, it handles messages
of its nodes, and sends them what is durable. Its decisions of that time have no effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from coordinatord.core.effects import Answer
from coordinatord.core.events import Event
from coordinatord.core.journal import Decided
from coordinatord.core.machine import Coordinator
from coordinatord.core.values.admin_requests import Request
from coordinatord.core.values.records import Record
from coordinatord.protocol.messages import Degraded, Desired, Goal, Join, Refused
from tests.sim.etcd import LEASE_S
from tests.sim.network import Session
from tests.support.modelled_etcd import changes_history

if TYPE_CHECKING:  # the world has these laws
    from tests.sim.etcd_coordinator import EtcdCoordinator
    from tests.sim.world import World


class FormerLeaders:
    """Watches all coordinators of one world but the one that leads."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._led_at = 0.0
        """When the present leader began to lead."""

    def _check(self, holds: bool, text: str, *arguments: Any) -> None:
        self._world.invariants.check(holds, text, *arguments)

    def led(self) -> None:
        """Note that another coordinator leads from now on."""
        self._led_at = self._world.queue.now

    # etcd

    def wrote(self, by: EtcdCoordinator, body: Mapping[str, Any]) -> None:
        """Check that a transaction that etcd has done is the leader's, if it changes the history."""
        leader = self._world.etcd.leader
        leads = leader is not None and by.is_named_by(leader)
        self._check(leads or not changes_history(body), "%s writes to etcd, and does not lead", by.endpoint)

    def durable(self, decided: Sequence[Decided]) -> None:
        """Fail: a former leader has made records durable."""
        self._check(False, "a former leader has made durable: %s", decided)

    # Messages

    def note_event(self, event: Event) -> None:
        """Check that it goes on only as long as its lease."""
        since_s = self._world.queue.now - self._led_at
        self._check(since_s < LEASE_S, "another one has led for %.1f s, and a former one handles %s", since_s, event)

    def sent(self, session: Session, message: Desired | Degraded) -> None:
        """Check that the round in its message is durable."""
        if isinstance(message, Degraded) or message.goal is not Goal.RUN:
            return
        formed = self._world.invariants.formed.get((message.run, message.round))
        part = message.assignment
        mine = None if formed is None or part is None else formed.nodes[part.group_rank]
        same = (
            mine is not None
            and part is not None
            and (mine.node, mine.first_rank)
            == (
                session.host.node,
                part.first_rank,
            )
        )
        self._check(same, "%s is sent another round %d", session.host.name, message.round)

    def refused(self, session: Session, refused: Refused) -> None:
        """Note that it turns a node away, which tries the next coordinator."""

    def answered(self, request: Request, run_id: str | None, answer: Answer) -> None:
        """Note that it answers an operator: the answer rests on durable records, or it could not know."""

    # What has no effect

    def joined(self, join: Join) -> None:
        """Note a node that has come."""

    def decided(self, records: Sequence[Record]) -> None:
        """Note records that will not become durable."""

    def settled(self, machine: Coordinator) -> None:
        """Note that nothing waits to be written."""

    def crashed(self) -> None:
        """Note its end."""
