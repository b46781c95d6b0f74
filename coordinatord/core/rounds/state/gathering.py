"""How the nodes of a run gather for its next round: when they arrived, and how long each waits."""

from __future__ import annotations

import math

from coordinatord.core.rounds.state.durable import DurableRun, State
from coordinatord.core.rounds.state.member import Member, MemberState
from coordinatord.core.rounds.state.roll import Roll
from coordinatord.core.rounds.values.deadline_heap import DeadlineHeap


class Gathering:
    """The nodes outside the round: when they arrived, and how long they wait. Times are in the coordinator's clock."""

    def __init__(self, durable: DurableRun, roll: Roll) -> None:
        """Begin with no arrival."""
        self._durable, self._roll = durable, roll
        self.join_timeouts = DeadlineHeap[str]()
        """When the --join-timeout of each waiting node expires, by node."""
        self.arrived_last = -math.inf
        """When the last node arrived, ready or preparing."""
        self.ready_first: float | None = None
        """The time from which the longest settle window counts: when the first node became ready, or, while a round
        forms, the last one that it needs."""
        self.ready_last = -math.inf
        """When the last node became ready."""
        self.has_newcomer = False
        """Whether a node has arrived that joined after the last round was formed."""
        self.joined_since: float | None = None
        """When enough nodes for a round had joined, ready or preparing; None while there are too few."""
        self.enough_since: float | None = None
        """When enough nodes for a round became ready; None while there are too few."""

    def begin_round(self) -> None:
        """Forget the arrivals: a round has been formed."""
        self.ready_first, self.has_newcomer = None, False
        self.join_timeouts.clear()

    def record_preparing(self, member: Member, now: float) -> None:
        """Record that a member prepares, which counts as its arrival."""
        if member.readiness.preparing_since is None:
            member.readiness.preparing_since = now - member.observed.idle_s
            self.arrived_last = now

    def record_arrival(self, member: Member, now: float) -> None:
        """Record that a member became ready; it arrives by this, unless it did when it began to prepare."""
        if member.readiness.has_arrived:
            member.readiness.arrived_at = now  # a new member arrived when it joined, perhaps before a restart
        self.has_newcomer |= member.durable.joined_at > self._durable.formed_at
        if member.readiness.has_arrived or member.readiness.preparing_since is None:
            self.arrived_last = now
        member.readiness.has_arrived = True
        self.ready_last = now
        ready = self._roll.count(MemberState.READY)
        is_needed = self._durable.state is State.FORMING and ready <= self._durable.spec.nodes_min
        if self.ready_first is None or ready == 1 or is_needed:
            self.ready_first = now
        self.begin_wait(member, now)

    def begin_wait(self, member: Member, now: float) -> None:
        """Start the join timeout of a ready member, unless it runs already or the run has a round."""
        if self._durable.state is State.FORMING and self.join_timeouts.get(member.node) is None:
            self.join_timeouts.set(member.node, now + member.offer.join_timeout_s)

    def postpone(self, by: float, now: float) -> None:
        """Extend the join timeouts by `by` seconds; no node has more than its whole timeout left at `now`."""
        self.join_timeouts.shift(by)
        for member in self._roll.members.values():
            expires_at, latest = self.join_timeouts.get(member.node), now + member.offer.join_timeout_s
            if expires_at is not None and expires_at > latest:
                self.join_timeouts.set(member.node, latest)

    def record_counts(self, now: float) -> None:
        """Record since when enough nodes for a round have joined, and since when enough are ready.

        Nodes of quarantined hosts count, since a round that lacks nodes takes them.
        """
        ready = self._roll.count(MemberState.READY, MemberState.QUARANTINED)
        least = self._durable.spec.nodes_min
        if ready + self._roll.count(MemberState.PREPARING) < least:
            self.joined_since = None
        elif self.joined_since is None:
            self.joined_since = now
        if ready < least:
            self.enough_since = None
        elif self.enough_since is None:
            self.enough_since = now
