"""How long a node may be silent before it counts as lost.

A lease is five heartbeats, where heartbeats come on time. A network that loses packets delivers them late and in
bursts, so a node that was late recently gets more time, up to a limit. So a cut cable is noticed within five heartbeats
on a good network, and on a bad one no node is lost for being late. The idea is that of the accrual failure detectors:
to judge a silence by the silences before it.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinatord.core.rounds.policy import Policy
from coordinatord.protocol.fields import DURATION_S_MAX

LATENESS_FORGIVEN = 5.0
"""The seconds that a lease grows by for each second that a heartbeat was late. TCP retries at equal pauses in sessions:
where one message has needed two retries, the next one may need ten."""

LATENESS_IGNORED = 0.5
"""A lateness below so many heartbeats is ignored: a busy host or a single lost packet causes less."""

ADDS_UP_BY = 0.25
"""The part of each further lateness that is added: if one heartbeat in three is late by a second, the lease
grows to its longest."""

FADES_TO = 0.97
"""The part of a lateness that is left after each heartbeat: half of it after 23 that are on time."""


@dataclass(slots=True, eq=False)
class Lease:
    """When one node was heard, and how late its messages are. Times are in the coordinator's clock."""

    heard_at: float
    """When its last message came."""
    awaited_from: float
    """The time since which its next message is awaited: when its last one came, or later if none could come till then,
    as while the coordinator slept."""
    heartbeat_s: float = 0.0
    """The heartbeat interval that it was last granted, and keeps to; 0 before the first message to it. The next one may
    be another, since nodes of any job join and leave."""
    late_s: float = 0.0
    """How many seconds later than due its recent messages came; older lateness fades."""
    answer_late_s: float = 0.0
    """How many seconds overdue a message to the node was when it sent its last one; 0 if it was on time."""
    expired: bool = False
    """Whether the lease is over."""
    spared_at: float | None = None
    """When it was last given another lease, though it had been silent for a whole one; None if it never was."""

    def record_heard(self, unanswered_s: float, policy: Policy, now: float) -> None:
        """Record that a message came; the node had received nothing for `unanswered_s` seconds when it sent it.

        The lateness of the coordinator's messages counts when one of them arrives at the node. Only then is it known
        how long the node had to wait.
        """
        due_s = self.heartbeat_s * (1 + LATENESS_IGNORED)
        answer_late_s = max(0.0, unanswered_s - due_s) if due_s else 0.0
        had_waited_s = self.answer_late_s if answer_late_s < self.answer_late_s else 0.0
        self.answer_late_s = answer_late_s
        late_s = max(0.0, now - self.awaited_from - due_s, had_waited_s)
        if late_s or self.late_s:
            most_s = policy.heartbeats_per_lease * self.heartbeat_s * (policy.lease_stretch_max - 1) / LATENESS_FORGIVEN
            self.late_s = min(max(late_s, self.late_s * FADES_TO + late_s * ADDS_UP_BY), most_s)
        self.heard_at = self.awaited_from = now

    def is_punctual(self, now: float) -> bool:
        """Whether the node is on time now, and has been lately: if its connection closes, its process most likely died.

        Otherwise its network is bad, and has most likely broken the connection too.
        """
        silent_s = now - self.awaited_from
        return max(silent_s - self.heartbeat_s, self.late_s) <= LATENESS_IGNORED * self.heartbeat_s

    def is_in_touch(self) -> bool:
        """Whether messages have come on time in both directions, also lately."""
        return self.late_s <= LATENESS_IGNORED * self.heartbeat_s and not self.answer_late_s

    def length_s(self, policy: Policy, heartbeat_s: float) -> float:
        """Return the lease in seconds of a node that is granted this heartbeat."""
        return min(policy.heartbeats_per_lease * heartbeat_s + LATENESS_FORGIVEN * self.late_s, DURATION_S_MAX)
