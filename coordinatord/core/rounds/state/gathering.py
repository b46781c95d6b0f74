"""How the nodes of a run gather for its next round: when they arrived, and how long each waits.

A node arrives when it joins. It is ready for a round then, or prepares first: it imports what its workers need. After
an arrival, a round that has enough nodes waits for more until the settle window is over, because nodes that are started
together come up one after the other. Each ready node waits for its `--join-timeout` at most.

A node that is back from a round is no arrival, so after a failure the next round begins at once. Such a node only waits
(`begin_wait`), like a node that reconnects or whose host is quarantined. Any other member that becomes ready arrives
(`record_ready`), even if it has arrived before: its drain is cancelled, the quarantine of its host ends while a
round is on, or its workers of an older round have ended.
"""

from __future__ import annotations

from msgspec import Struct

from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.state.durable import DurableRun, State
from coordinatord.core.rounds.state.member import Member, MemberState
from coordinatord.core.rounds.state.roll import Roll
from coordinatord.core.rounds.values.deadline_heap import DeadlineHeap
from coordinatord.core.rounds.values.due_times import LONG_AGO, NOW

REFUSED_MAX = 16
"""How many refused nodes a run remembers: they are shown to people, and may have any names."""


class RefusedNode(Struct, frozen=True):
    """A node that may not join for now, and asks again."""

    host: str
    why: str
    at: float
    """When it asked last."""


class Gathering:
    """The arrivals and waits of the nodes outside the round. Times are in the coordinator's clock."""

    def __init__(self, durable: DurableRun, roll: Roll) -> None:
        self._durable, self._roll = durable, roll
        self.join_timeouts = DeadlineHeap[str]()
        """When the --join-timeout of each waiting node expires, by node."""
        self.arrived_last = LONG_AGO
        """When the last node arrived."""
        self._ready_last = LONG_AGO
        """When the last node became ready."""
        self.settles_from: float | None = None
        """When the window of `settle_max_s` began: when the first node became ready. While a round forms, it begins
        anew with each node up to the minimum, since with fewer nodes no round can begin. None if no node has become
        ready since the last round was formed."""
        self.has_newcomer = False
        """Whether a node has arrived that joined after the last round was formed: it ends a pause after an error."""
        self.joined_since: float | None = None
        """When enough nodes for a round had joined, ready or preparing; None while there are too few."""
        self.enough_since: float | None = None
        """When enough nodes for a round were ready; None while there are too few. The time without a round is divided
        between activities at this time and at `joined_since` (`queries/time_attribution`)."""
        self.refused: dict[str, RefusedNode] = {}
        """The nodes that were refused for now, and have not joined since, in the order of their last refusals."""

    def begin_round(self) -> None:
        """Forget the arrivals: a round has been formed."""
        self.settles_from, self.has_newcomer = None, False
        self.join_timeouts.clear()

    def record_preparing(self, member: Member, now: float) -> None:
        """Record that a member prepares, which counts as its arrival."""
        if member.readiness.preparing_since is None:
            member.readiness.preparing_since = now - member.observed.idle_s
            self.arrived_last = now

    def record_ready(self, member: Member, now: float) -> None:
        """Record that a member became ready, which is an arrival, unless it arrived by beginning to prepare."""
        readiness = member.readiness
        if readiness.has_arrived or readiness.preparing_since is None:
            self.arrived_last = now
        if readiness.has_arrived:
            readiness.arrived_at = now  # a new member keeps the time of its join, perhaps before a restart
        readiness.has_arrived = True
        self.has_newcomer |= member.durable.joined_at > self._durable.formed_at
        self._ready_last = now
        ready = self._roll.count(MemberState.READY)
        is_needed = self._durable.state is State.FORMING and ready <= self._durable.spec.nodes_min
        # If no other is ready, those that were ready before are gone, and their window with them.
        if self.settles_from is None or ready == 1 or is_needed:
            self.settles_from = now
        self.begin_wait(member, now)

    def settle_end(self, policy: Policy) -> float:
        """Return when the settle window is over, which does not wait for nodes that prepare.

        Nodes that prepare together do not become ready together. So while any node prepares, each that becomes ready
        counts as an arrival.
        """
        if self.settles_from is None:
            return NOW
        last = self.arrived_last
        if self._roll.count(MemberState.PREPARING):
            last = max(last, self._ready_last)
        return min(last + policy.settle_s, self.settles_from + policy.settle_max_s)

    def begin_wait(self, member: Member, now: float) -> None:
        """Start the join timeout of a waiting member, unless it runs already or the run has a round."""
        if self._durable.state is State.FORMING and self.join_timeouts.get(member.node) is None:
            self.join_timeouts.set(member.node, now + member.offer.join_timeout_s)

    def postpone(self, by: float, now: float) -> None:
        """Extend the join timeouts by `by` seconds; no node has more than its whole timeout left at `now`."""
        self.join_timeouts.shift(by)
        for member in self._roll.members.values():
            expires_at, latest = self.join_timeouts.get(member.node), now + member.offer.join_timeout_s
            if expires_at is not None and expires_at > latest:
                self.join_timeouts.set(member.node, latest)

    def record_refusal(self, node: str, refused: RefusedNode) -> None:
        """Record that a node was refused for now."""
        self.refused.pop(node, None)
        self.refused[node] = refused
        if len(self.refused) > REFUSED_MAX:
            del self.refused[next(iter(self.refused))]

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
