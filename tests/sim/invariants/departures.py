"""Invariants of a node whose process dies while all else is well: its closed connection shows that at once.

Nothing is checked where any of its messages may have been late: then the node may only be out of reach.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinatord.core.rounds.events import Connected, Disconnected, Event, Reported
from coordinatord.core.rounds.values.records import NodeLost
from tests.sim.invariants.laws import Facts, Laws
from tests.sim.invariants.root_cause import ALIKE_S, ROUGHLY
from tests.sim.workers import Round

if TYPE_CHECKING:  # the world imports its invariants
    from tests.sim.host import Host

PUNCTUAL = 1.3
"""The number of heartbeats within which a punctual node is heard. A connection that outlives its process exceeds it."""

SLOWING = ("network slow", "coordinator stalls", "disk hangs", "disk fails", "disk fails for long")
"""Faults after which answers to nodes may have been late without being noticed."""


class DepartureLaws(Laws):
    """Watches for how long the coordinator waits for processes that have died."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._killed: set[tuple[str, int]] = set()
        """Nodes, by incarnation, that were well until they were killed."""
        self._closed_at: dict[tuple[str, int], float] = {}
        """When the coordinator saw the connection of each of them closed."""
        self.proved = 0
        """How many nodes were not waited for."""
        self._absent: set[tuple[str, int]] = set()
        """Nodes, by incarnation, whose connection closed, and that have not been let in since."""
        self._connecting: dict[int, tuple[str, int]] = {}
        """The node and incarnation that the last event may have let in, by session."""
        self._last_sent_at: dict[tuple[str, int], float] = {}
        """When each process last sent anything, by node and incarnation."""
        self._event_at, self._event_before = 0.0, 0.0
        """The times of the last event and of the one before. All that was due by the earlier time is decided."""

    def killed(self, host: Host) -> None:
        """Note that a node is about to be killed."""
        network, faults = self.world.scenario.network, self.world.faults
        slow = network.harsh or network.spike_chance or any(faults[name] for name in SLOWING)
        since = max(host.troubled_until, self.facts.upset_at)
        if host.well and not slow and since <= host.booted_at and host.session is not None:
            self._killed.add((host.node, host.incarnation))

    def note_event(self, event: Event) -> None:
        """Take in an event that the coordinator is about to handle."""
        now, machine = self.world.queue.now, self.world.daemon.machine
        return_s = self.world.scenario.policy.reconnect_grace_s
        grace_s = return_s / ROUGHLY + ALIKE_S
        if now > self._event_at:
            if now - self._event_at > return_s / 2:  # it looks twice as often, so it has slept, and forgives that
                self._closed_at.clear()
            self._event_before, self._event_at = self._event_at, now
        self._forget_silent()
        for key in [key for key, closed_at in self._closed_at.items() if self._event_before - closed_at > grace_s]:
            closed_at = self._closed_at.pop(key)
            waits, waited_s = (
                self.facts.upset_at < closed_at and self._is_counted_on(*key),
                self._event_before - closed_at,
            )
            self.check(not waits, "%s has died, and is waited for %.2f s later", key[0], waited_s)
        self._absent -= {key for session, key in self._connecting.items() if session in machine._sessions}
        self._connecting.clear()
        if isinstance(event, Connected):
            key = event.join.node, event.join.incarnation
            self._connecting[event.session], self._last_sent_at[key] = key, now
        if not isinstance(event, Reported | Disconnected) or event.session not in machine._sessions:
            return
        member = machine._sessions[event.session][1]
        key = member.node, member.incarnation
        if isinstance(event, Reported):
            self._last_sent_at[key] = now
            return
        self._absent.add(key)
        silent_s = now - self._last_sent_at.get(key, -1.0)
        if key in self._killed and silent_s < PUNCTUAL * self.world.scenario.policy.heartbeat_s:
            self._closed_at[key] = now

    def judges(self, record: NodeLost, key: Round) -> None:
        """Check that a node which is lost before its time to come back is over has broken its round.

        So no node is given up for a closed connection while all of its workers live.
        """
        if record.reason.startswith("its workers are gone"):
            check, node = self.check, (record.node, record.incarnation)
            by = self.world.trainings[key].broken_by
            self.proved += 1
            check(by == node, "%s counts as lost, and the round was broken by %s", record.node, by)
            check(node in self._absent, "%s counts as lost, and is connected", record.node)

    def _forget_silent(self) -> None:
        # Where all nodes are silent, the coordinator itself may be cut off, and no node is lost.
        runs = self.world.daemon.machine.jobs.values() if self._closed_at else ()
        silent = {node for run in runs if run.roll.all_silent or run.durable.silent for node in run.members}
        if silent:
            self._closed_at = {key: at for key, at in self._closed_at.items() if key[0] not in silent}

    def _is_counted_on(self, node: str, incarnation: int) -> bool:
        runs = self.world.daemon.machine.jobs.values()
        members = [member for run in runs if (member := run.members.get(node)) is not None]
        return any(member.incarnation == incarnation and not member.lease.expired for member in members)
