"""How long a node may be silent before it counts as lost.

Five heartbeats, where heartbeats come on time. A network that loses packets delivers them late and in bursts, so
whoever was late of late gets more time, up to a limit. On a good network a cut cable is noticed within the lease that
was promised, on a bad one nobody is lost for its manners (the idea of the accrual failure detectors: judge a silence by
the silences before it).
"""

from __future__ import annotations

from coordinatord.core.policy import Policy
from coordinatord.core.state.member import Member
from coordinatord.core.state.run import Run
from coordinatord.core.values.deadline_heap import DeadlineHeap
from coordinatord.protocol.fields import DURATION_S_MAX

LATENESS_FORGIVEN = 5.0
"""Seconds of lease for each second that a heartbeat was late: two retries of TCP that fail foretell ten that do."""

LATENESS_IGNORED = 0.5
"""In heartbeats: a busy host or a single lost packet makes one late by less, which is no reason to wait longer."""

ADDS_UP_BY = 0.25
"""How much of each further lateness comes on top: one heartbeat in three, late by a second, leads to the longest."""

FADES_TO = 0.97
"""What is left of a lateness after each further heartbeat that is on time: half of it after 23."""


def note_heard(member: Member, deaf_s: float, policy: Policy, heartbeat_s: float, now: float) -> None:
    """Note how late a member's word is that comes now; it has heard nothing from us for `deaf_s`.

    How late our words reached it is known once one has: a silence that may never end says nothing of the next.
    """
    was_deaf_s = member.deaf_s if deaf_s < member.deaf_s else 0.0
    member.deaf_s = deaf_s
    due_s = heartbeat_s * (1 + LATENESS_IGNORED)
    late_s = max(0.0, now - member.awaited_from - due_s, was_deaf_s - due_s)
    if late_s or member.late_s:
        most_s = _promised_s(policy, heartbeat_s) * (policy.lease_stretch_max - 1) / LATENESS_FORGIVEN
        member.late_s = min(max(late_s, member.late_s * FADES_TO + late_s * ADDS_UP_BY), most_s)
    member.awaited_from = now


def is_punctual(member: Member, heartbeat_s: float, now: float) -> bool:
    """Whether a member is on time, and was of late: then a connection that closes is a process that died, most likely.

    On a bad network, or in the middle of a silence, it is one more thing that the network did.
    """
    silent_s = now - member.awaited_from
    return max(silent_s - heartbeat_s, member.late_s) <= LATENESS_IGNORED * heartbeat_s


def lease_s(member: Member, policy: Policy, heartbeat_s: float) -> float:
    """Return the lease of a member, in seconds, that is granted this heartbeat."""
    return min(_promised_s(policy, heartbeat_s) + LATENESS_FORGIVEN * member.late_s, DURATION_S_MAX)


def _promised_s(policy: Policy, heartbeat_s: float) -> float:
    return policy.leases_per_heartbeat * heartbeat_s


def _held_s(run: Run, member: Member, heartbeat_s: float) -> float:
    """Return the lease that a member has: never less than it was granted last, as it keeps its heartbeat to that."""
    granted = 0.0 if member.sent is None else member.sent.lease_s
    return max(granted, lease_s(member, run.policy, heartbeat_s))


class Leases(DeadlineHeap[tuple[str, str]]):
    """When the lease of each member ends, by run id and node. One whose lease is over has none."""

    def renew(self, run: Run, member: Member, heartbeat_s: float, now: float) -> None:
        """Begin the lease of a member anew."""
        self.set((run.id, member.node), now + _held_s(run, member, heartbeat_s))

    def shorten(self, run: Run, member: Member, heartbeat_s: float, now: float) -> None:
        """Give a member whose connection has closed the time to come back; one on a bad network keeps its lease."""
        lease = self.get((run.id, member.node))
        if lease is not None and is_punctual(member, heartbeat_s, now):
            grace = now + run.policy.reconnect_grace_s
            self.set((run.id, member.node), min(lease, grace))

    def give_chance(self, run: Run, heartbeat_s: float, trouble_s: float, now: float) -> None:
        """After a time in which nodes were heard and none could be lost, give each one lease, or a grace to connect.

        All leases have been moved by that time; what is left of one without that stands if it is longer.
        """
        for member in run.members.values():
            moved = self.get((run.id, member.node))
            if moved is not None:
                if moved - trouble_s < now:
                    member.spared_at = now
                connected = member.session is not None
                most_s = _held_s(run, member, heartbeat_s) if connected else run.policy.reconnect_grace_s
                self.set((run.id, member.node), max(moved - trouble_s, now + most_s))
