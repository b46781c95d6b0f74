"""How long a node may be silent before it counts as lost.

Five heartbeats, where heartbeats come on time. A network that loses packets delivers them late and in bursts, so
whoever was late of late gets more time, up to a limit. On a good network a cut cable is noticed within the lease that
was promised, on a bad one nobody is lost for its manners (the idea of the accrual failure detectors: judge a silence by
the silences before it).
"""

from __future__ import annotations

from coordinatord.core.member import Member
from coordinatord.core.policy import Policy

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
    return _promised_s(policy, heartbeat_s) + LATENESS_FORGIVEN * member.late_s


def _promised_s(policy: Policy, heartbeat_s: float) -> float:
    return policy.leases_per_heartbeat * heartbeat_s
