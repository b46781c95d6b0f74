"""How long a node may be silent before it counts as lost.

Five heartbeats, where heartbeats come on time. A network that loses packets delivers them late and in bursts, because
TCP waits longer and longer before it tries again; so whoever was late of late gets more time, up to a limit. On a good
network a cut cable is noticed within the lease that was promised, on a bad one nobody is lost for its manners (the idea
of the accrual failure detectors: judge a silence by the silences before it).
"""

from __future__ import annotations

from coordinatord.core.member import Member
from coordinatord.core.policy import Policy

LATENESS_FORGIVEN = 3.0
"""Seconds of lease for each second that a heartbeat was late: whoever was late once may be three times as late next."""

LATENESS_IGNORED = 0.5
"""In heartbeats: a busy host or a single lost packet makes one late by less, which is no reason to wait longer."""

FADES_TO = 0.97
"""What is left of a lateness after each further heartbeat that is on time: half of it after 23."""


def note_heard(member: Member, heartbeat_s: float, now: float) -> None:
    """Note how late the word of a member is that is heard now, beyond one heartbeat after the one before."""
    late_s = now - member.awaited_from - heartbeat_s
    member.late_s = max(late_s, member.late_s * FADES_TO)
    member.awaited_from = now


def lease_s(member: Member, policy: Policy, heartbeat_s: float) -> float:
    """Return the lease of a member, in seconds, that is granted this heartbeat."""
    promised = heartbeat_s * policy.leases_per_heartbeat
    late_s = max(0.0, member.late_s - LATENESS_IGNORED * heartbeat_s)
    return min(promised + LATENESS_FORGIVEN * late_s, promised * policy.lease_stretch_max)


def reconnect_grace_s(member: Member, policy: Policy, heartbeat_s: float) -> float:
    """Return how long a member whose connection has closed gets to be back: longer where all takes longer."""
    stretch = lease_s(member, policy, heartbeat_s) / (heartbeat_s * policy.leases_per_heartbeat)
    return policy.reconnect_grace_s * stretch
