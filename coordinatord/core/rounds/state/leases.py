"""How long a node may be silent before it counts as lost.

A lease is five heartbeats, where heartbeats come on time. A network that loses packets delivers them late and in
bursts, so a node that was late lately gets more time, up to a limit. On a good network a cut cable is noticed within
the promised lease, and on a bad one no node is lost for being late (the idea of the accrual failure detectors: judge a
silence by the silences before it).
"""

from __future__ import annotations

from collections.abc import Sequence

from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.state.member import Member, MemberState
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.deadline_heap import DeadlineHeap
from coordinatord.core.rounds.values.records import NodeLost, Record
from coordinatord.protocol.fields import DURATION_S_MAX

LATENESS_FORGIVEN = 5.0
"""Seconds of lease for each second that a heartbeat was late: after two failed retries of TCP, ten may follow."""

LATENESS_IGNORED = 0.5
"""A lateness in heartbeats that is ignored: a busy host or a single lost packet causes less."""

ADDS_UP_BY = 0.25
"""The part of each further lateness that is added: if one heartbeat in three is late by a second, the lease is the
longest."""

FADES_TO = 0.97
"""The part of a lateness that is left after each heartbeat that is on time: half of it after 23."""


def note_heard(member: Member, unanswered_s: float, policy: Policy, heartbeat_s: float, now: float) -> None:
    """Note how late a member's message is; the member had received nothing for `unanswered_s` when it sent it.

    How late the coordinator's own messages come is known once one has arrived: a silence that goes on may never end,
    and then it does not show how long the next one will be.
    """
    had_waited_s = member.unanswered_s if unanswered_s < member.unanswered_s else 0.0
    member.unanswered_s = unanswered_s
    due_s = heartbeat_s * (1 + LATENESS_IGNORED)
    late_s = max(0.0, now - member.awaited_from - due_s, had_waited_s - due_s)
    if late_s or member.late_s:
        most_s = policy.heartbeats_per_lease * heartbeat_s * (policy.lease_stretch_max - 1) / LATENESS_FORGIVEN
        member.late_s = min(max(late_s, member.late_s * FADES_TO + late_s * ADDS_UP_BY), most_s)
    member.awaited_from = now


def is_punctual(member: Member, heartbeat_s: float, now: float) -> bool:
    """Whether a member is on time now, and has been lately: if its connection closes, its process most likely died.

    Otherwise the closed connection is most likely one more fault of a bad network.
    """
    silent_s = now - member.awaited_from
    return max(silent_s - heartbeat_s, member.late_s) <= LATENESS_IGNORED * heartbeat_s


def is_in_touch(member: Member, heartbeat_s: float) -> bool:
    """Whether a member has a session, and messages have come on time in both directions, also lately."""
    late_s = max(member.late_s, member.unanswered_s - heartbeat_s)
    return member.session is not None and late_s <= LATENESS_IGNORED * heartbeat_s


def lease_s(member: Member, policy: Policy, heartbeat_s: float) -> float:
    """Return the lease in seconds of a member that is granted this heartbeat."""
    return min(policy.heartbeats_per_lease * heartbeat_s + LATENESS_FORGIVEN * member.late_s, DURATION_S_MAX)


def _held_s(run: Run, member: Member, heartbeat_s: float) -> float:
    """Return the lease that a member has: never less than it was granted last, since it still keeps that heartbeat."""
    granted = 0.0 if member.sent is None else member.sent.lease_s
    return max(granted, lease_s(member, run.policy, heartbeat_s))


class Leases(DeadlineHeap[tuple[str, str]]):
    """Lease deadlines of the members, keyed by (run id, node). A member whose lease is over has none."""

    def renew(self, run: Run, member: Member, heartbeat_s: float, now: float) -> None:
        """Begin the lease of a member anew."""
        self.set((run.id, member.node), now + _held_s(run, member, heartbeat_s))

    def renew_all(self, run: Run, heartbeat_s: float, now: float) -> None:
        """Give every silent member a full lease, when the first one is heard after all were silent."""
        for member in list(run.roll.in_state(MemberState.SILENT)):
            member.expired, member.spared_at = False, now
            self.renew(run, member, heartbeat_s, now)
            run.roll.place(member)

    def shorten(self, run: Run, member: Member, heartbeat_s: float, now: float) -> None:
        """Give a member whose connection has closed the time to come back; one on a bad network keeps its lease."""
        lease = self.get((run.id, member.node))
        if lease is not None and is_punctual(member, heartbeat_s, now):
            member.vanished = not member.revoked
            grace = now + run.policy.reconnect_grace_s
            self.set((run.id, member.node), min(lease, grace))

    def drop_lost(self, run: Run, records: Sequence[Record]) -> None:
        """End the leases of nodes that count as lost by these records, though their time was not over."""
        for record in records:
            if isinstance(record, NodeLost) and record.node not in run.members:
                self.discard((run.id, record.node))

    def give_chance(self, run: Run, heartbeat_s: float, degraded_s: float, now: float) -> None:
        """Give each node one lease, or a grace to connect, after a time in which none could be judged.

        Nodes were heard in that time, and all leases have been moved by it. A lease of which more was left keeps that.
        """
        for member in run.members.values():
            moved = self.get((run.id, member.node))
            if moved is not None:
                if moved - degraded_s < now:
                    member.spared_at = now
                connected = member.session is not None
                chance_s = _held_s(run, member, heartbeat_s) if connected else run.policy.reconnect_grace_s
                self.set((run.id, member.node), max(moved - degraded_s, now + chance_s))
