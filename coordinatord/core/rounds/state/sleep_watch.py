"""Notices that the coordinator itself was asleep."""

from __future__ import annotations

import math

from coordinatord.core.rounds.policy import Policy


class SleepWatch:
    """Notices that the coordinator was asleep: stopped, swapped out, or too busy to read messages.

    It looks at the clock at regular times, and a look that comes late shows a sleep. It reads the messages of that time
    only afterwards. So deadlines that rest on the silence of nodes are put off by the sleep.
    """

    def __init__(self) -> None:
        self.awake_at = -math.inf
        """Up to when nodes could be judged: when the last event was handled, unless that was late."""
        self.woke_at = -math.inf
        """When the coordinator last began to answer after a time in which it could not."""
        self.next_at = -math.inf
        """When to look at the clock again."""
        self._returns_until = -math.inf
        """The time up to which a node may come back whose connection has closed."""

    def begin(self, policy: Policy, now: float) -> None:
        """Begin to watch."""
        self.awake_at = self.woke_at = now
        self.look_again(policy, now)

    def look_again(self, policy: Policy, now: float) -> None:
        """Look at the clock a heartbeat later, or sooner while a node has only a short time to come back."""
        is_short = now < self._returns_until
        self.next_at = now + (policy.reconnect_grace_s / 4 if is_short else policy.heartbeat_s)

    def await_return(self, policy: Policy, now: float) -> None:
        """Look more often for as long as a node may come back.

        A sleep of less than a heartbeat may take most of that time, and the node's join is read only after it.
        """
        self._returns_until = now + policy.reconnect_grace_s
        self.next_at = min(self.next_at, now + policy.reconnect_grace_s / 4)

    def on_event(self, due: float | None, least_s: float, policy: Policy, now: float) -> bool:
        """Take in an event, where one was `due`; return whether a sleep of more than `least_s` is to be forgiven.

        The coordinator may have fallen asleep at any time after the last event.
        """
        late_s = policy.heartbeat_s
        if self.awake_at < self._returns_until:
            late_s = min(late_s, policy.reconnect_grace_s / 2)
        is_late = due is not None and now - due > late_s
        if not is_late:
            self.awake_at = now
        if now >= self.next_at:
            self.look_again(policy, now)
        return is_late and now - self.awake_at > least_s

    def wake(self, policy: Policy, now: float) -> float:
        """Judge nodes from now on; return the time since they could last be judged, in seconds."""
        asleep_s = now - self.awake_at
        if self.awake_at < self._returns_until:
            self._returns_until += asleep_s
        self.begin(policy, now)
        return asleep_s
