"""The preflight of a run: tests in pairs among its nodes without workers, one turn after the other.

It is live state: a restarted coordinator has none, and the nodes end their tests when they hear from it. A run begins
with one of no members, which is over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from coordinatord.core.rounds.state.member import Member
from coordinatord.core.rounds.values.pair_search import PairSearch
from coordinatord.protocol.fields import COUNTER_MAX
from coordinatord.protocol.pair_messages import PairOrder, PairResult

GRACE_S = 2.0
"""How much longer than its tests a turn takes at most: two heartbeats, for the messages on both ways."""

HOLD_S = 15.0
"""How long a round waits for a preflight on suspicion: two turns of good nodes take 8 s."""

REPORTED_MAX = COUNTER_MAX // 2
"""The highest number of a test that a node is believed: enough are left above it, whatever a node reports."""


class Preflight:
    """One preflight of some members, which need not stay members."""

    def __init__(self, members: Sequence[Member] = (), why: str = "", after: int = 0) -> None:
        """Begin a search, because of `why`, after a test with the number `after`; `begin_turn` follows."""
        self.members = {member.node: member for member in members}
        """A younger process of one of them, with the same name, is none of them: it may be on another host."""
        self.search = PairSearch({member.node: member.offer.host for member in members})
        self.why = why
        self.stopped = ""
        """Why it is over before its time; empty if it is not."""
        self.orders: dict[str, PairOrder] = {}
        """The order of each node in this turn; empty once the preflight is over."""
        self.results: dict[str, PairResult] = {}
        """The results of this turn so far."""
        self.awaited: set[str] = set()
        """The nodes whose results are still to come."""
        self._holds_until = -math.inf
        self.ends_at = -math.inf
        """When the turn is over, even if results are still to come."""
        self.idle_at = -math.inf
        """When to look again for members to test that wait on idle hosts: the last look has found too few."""
        reported = (member.observed.pair.number for member in members if member.observed.pair is not None)
        self.number = max((after, *(number for number in reported if number <= REPORTED_MAX)))
        """The number of the tests of this turn, higher than that of any earlier test of these nodes."""

    @property
    def is_over(self) -> bool:
        """Whether no further turn follows."""
        return not self.orders

    @property
    def holds_until(self) -> float:
        """When the next round no longer waits for it; in the past if none waits."""
        return -math.inf if self.is_over else self._holds_until

    def hold(self, until: float) -> None:
        """Have the next round wait until this time, unless the preflight is over before."""
        self._holds_until = until

    def postpone(self, by: float) -> None:
        """Put off all deadlines by so many seconds."""
        self.ends_at += by
        self._holds_until += by

    def begin_turn(self, addresses: Mapping[str, tuple[str, int]], within_s: float, now: float) -> None:
        """Order the tests of the search's turn; `addresses` has the address and the port of the first of each pair.

        A pair without an address is not tested.
        """
        self.number += 1
        self.orders = {
            node: PairOrder(self.number, rank, pair[1 - rank], *addresses[pair[0]], within_s)
            for pair in self.search.pairs
            if pair[0] in addresses
            for rank, node in enumerate(pair)
        }
        self.results, self.awaited, self.ends_at = {}, set(self.orders), now + within_s + GRACE_S

    def record(self, member: Member) -> None:
        """Record the result that a member has reported, if it is of this turn."""
        result = member.observed.pair
        if member.node in self.awaited and result is not None and result.number == self.number:
            self.results[member.node] = result
            self.awaited.discard(member.node)

    def stop(self, why: str) -> None:
        """End it before its time, unless it is over."""
        if not self.is_over:
            self.orders, self.stopped = {}, why
