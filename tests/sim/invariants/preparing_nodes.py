"""Invariants of rounds that wait for nodes which prepare: they wait no longer than for any other arrival.

They are checked by the messages to the coordinator, at times of its own clock. Nothing is checked where a round may
wait for something else: a pause after an error, a node that may come back, a store that fails.
"""

from __future__ import annotations

import math

from coordinatord.core.keeping.known import kept_of
from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.events import AdminRequested, Connected, Event, Reported
from coordinatord.core.rounds.queries.next_round import pause_s
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import Member, MemberState
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.transitions.table import first_due
from coordinatord.core.rounds.values.admin_requests import UndrainNode
from coordinatord.protocol.messages import Phase
from tests.sim.invariants.laws import Facts, Laws

ALIKE_S = 0.05
"""Two readings of the coordinator's clock in the same moment differ by less."""

HELD_S = 15.0
"""How long tests in pairs may hold up a round."""


class PreparingLaws(Laws):
    """Watches when nodes join, and when they are ready."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._life = 0
        self._came_at = -math.inf
        """When a node last came, in this life of the coordinator."""
        self._ready_at = -math.inf
        """When a node that had prepared was last ready, in this life of the coordinator."""
        self._first_ready: dict[tuple[str, int], float] = {}
        """When a report first showed that a node does not prepare, by the queue; keyed by node and incarnation."""

    def ready_at(self, member: Member) -> float:
        """Return when a node became ready for the first time, by the queue."""
        return self._first_ready[member.node, member.incarnation]

    def ready_after(self, since: float) -> float:
        """Return when the first node became ready at `since` or later, by the queue; infinite if none did."""
        return min((at for at in self._first_ready.values() if at >= since), default=math.inf)

    def note_event(self, event: Event) -> None:
        """Check that enough nodes do not wait too long; note which nodes come, and which are ready."""
        daemon = self.world.daemon
        machine, now = daemon.machine, daemon.clock.read()
        if self._life != daemon.life:
            self._life, self._came_at = daemon.life, now
        self._judge(machine)
        if isinstance(event, Connected):
            self._came_at = self._ready_at = now
            node, incarnation, observed = event.join.node, event.join.incarnation, event.join.observed
        elif isinstance(event, Reported) and event.session in machine._sessions:
            member, observed = machine._sessions[event.session][1], event.observed
            node, incarnation = member.node, member.incarnation
            if member.state is MemberState.PREPARING and not member.readiness.has_arrived:
                self._ready_at = now
            elif member.state is not MemberState.READY:  # also a node whose messages overtook each other
                self._came_at = now
        else:
            if isinstance(event, AdminRequested) and isinstance(event.request, UndrainNode):
                self._came_at = now  # a node that is to stay again arrives, where one of that name was to leave
            return
        if observed.phase is not Phase.PREPARING:
            self._first_ready.setdefault((node, incarnation), self.world.queue.now)

    def _judge(self, machine: Coordinator) -> None:
        run = machine.jobs.get("job")
        if run is None or machine.store_error is not None or not _may_form(run):
            return
        due = first_due(run)
        last = max(self._came_at, self._ready_at) if run.roll.count(MemberState.PREPARING) else self._came_at
        delays_until = run.judging.delays_until
        late_s = math.inf if due is None else due - max(last + machine.policy.settle_s, delays_until)
        held_s = delays_until - self.world.daemon.clock.read()
        self.check(held_s <= HELD_S, "enough nodes are ready, and tests hold them up for %.2f s more", held_s)
        self.check(late_s <= ALIKE_S, "enough nodes are ready, and wait for %.2f s too long", late_s)


def _may_form(run: Run) -> bool:
    """Whether enough nodes are ready, with quarantined ones if no others come, and nothing but time delays a round."""
    if run.durable.state is not State.FORMING:
        return False
    here = [(member.state, bool(member.readiness.quarantined)) for member in run.members.values()]
    ready = here.count((MemberState.READY, False))
    if (MemberState.PREPARING, False) not in here:
        ready += here.count((MemberState.READY, True)) + here.count((MemberState.QUARANTINED, True))
    if ready < run.spec.nodes_min:
        return False
    waits = run.roll.count(MemberState.DISCONNECTED) or pause_s(run) or run.durable.stop_asked or _waits_for_disk(run)
    return not waits


def _waits_for_disk(run: Run) -> bool:
    """Whether nodes find different steps on the disk, or lack one that is known to be there, or cannot read one."""
    held = [kept for member in run.members.values() if (kept := member.observed.kept) is not None]
    views = {kept.persisted for kept in held} | ({()} if len(held) < len(run.members) else set())
    found = kept_of(run).disk.found
    gone = found.departed is not None or ((found.newest or found.lost) is not None and not any(views))
    return gone or len(views) > 1 or any(kept.unusable for kept in held)
