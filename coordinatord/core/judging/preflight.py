"""The preflight of a run: tests in pairs among its nodes without workers, one turn after the other.

It is live state: a restarted coordinator has none, and the nodes end their tests when they hear from it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from coordinatord.core.judging.pair_search import PairSearch
from coordinatord.core.rounds.queries.master_address import master_address
from coordinatord.core.rounds.state.member import Member, MemberState
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.state.wings import JudgingWing
from coordinatord.core.rounds.values.records import PreflightBegan, PreflightEnded
from coordinatord.protocol.fields import COUNTER_MAX, MESSAGE_MAX
from coordinatord.protocol.pair_messages import PairOrder, PairResult
from coordinatord.protocol.text import clip

GRACE_S = 2.0
"""How much longer than its tests a turn takes at most: two heartbeats, for the messages on both ways."""

REPORTED_MAX = COUNTER_MAX // 2
"""The highest number of a test that a node is believed, so that there are enough higher ones."""


class Preflight(JudgingWing):
    """The last preflight of a run in this life of the daemon; its members need not stay members of the run."""

    def __init__(self, run: Run) -> None:
        """Begin with a preflight of no members, which is over."""
        self.run = run
        self.number = -1
        """The number of this turn's tests, higher than that of any earlier test of these nodes; the first is 1."""
        self._begin_tests((), "", -math.inf)

    def begin(self, members: Sequence[Member], why: str, now: float, holds_until: float = -math.inf) -> PreflightBegan:
        """Begin a preflight of some members, because of `why`; the next round waits for it until `holds_until`."""
        self._begin_tests(members, why, now, holds_until)
        text = f"{len(members)} nodes are tested in pairs: {why}"
        return PreflightBegan(self.run.job, self.run.id, clip(text, MESSAGE_MAX))

    def _begin_tests(self, members: Sequence[Member], why: str, now: float, holds_until: float = -math.inf) -> None:
        self.members = {member.node: member for member in members}
        """A younger process with the name of one of them does not count as that one: it may be on another host."""
        self.search = PairSearch({member.node: member.offer.host for member in members})
        self.why, self.stopped = why, ""
        """Why it was begun, and why it was ended before its time; empty if it was not."""
        self.idle_at = -math.inf
        """When to look again for members to test on idle hosts: the last time there were too few."""
        self.holds_until = holds_until
        reported = (member.observed.pair.number for member in members if member.observed.pair is not None)
        self.number = max((self.number, *(number for number in reported if number <= REPORTED_MAX)))
        self.begin_turn(now)

    def begin_turn(self, now: float) -> None:
        """Order the tests of the search's turn, but for those of nodes that no longer wait without workers."""
        waiting = {member.node: member for member in self.testable if self.members.get(member.node) is member}
        self.number += 1
        self.orders: dict[str, PairOrder] = {}
        """The order of each node in this turn; empty once the preflight is over."""
        within_s = self.run.policy.pair_timeout_s
        for pair in self.search.pairs:
            first, second = waiting.get(pair[0]), waiting.get(pair[1])
            if first is not None and second is not None:
                at = master_address(first, [first, second]), first.observed.port
                self.orders[first.node] = PairOrder(self.number, 0, second.node, *at, within_s)
                self.orders[second.node] = PairOrder(self.number, 1, first.node, *at, within_s)
        self.results: dict[str, PairResult] = {}
        """The results of this turn so far."""
        self.awaited = set(self.orders)
        """The nodes whose results are still to come."""
        self.ends_at = now + within_s + GRACE_S
        """When the turn is over, even if results are still to come."""
        if self.is_over:
            self.holds_until = -math.inf

    @property
    def testable(self) -> list[Member]:
        """The members of the run that wait without workers, by host."""
        waiting = self.run.roll.in_state(MemberState.READY, MemberState.QUARANTINED)
        return sorted(waiting, key=lambda member: (member.offer.host, member.node))

    @property
    def is_over(self) -> bool:
        """Whether no node is ordered to run a test any more."""
        return not self.orders

    def report(self, member: Member) -> None:
        """Record the result that a member has reported, if it is of this turn."""
        result = member.observed.pair
        if member.node in self.awaited and result is not None and result.number == self.number:
            self.results[member.node] = result
            self.awaited.discard(member.node)

    def remove(self, member: Member) -> None:
        """Wait for no result of a node that is gone."""
        self.awaited.discard(member.node)

    def postpone(self, by: float) -> None:
        """Put off the end of the turn, and that of the wait for it."""
        self.ends_at += by
        self.holds_until += by

    def stop_tests(self, why: str, hosts: Collection[str] | None = None) -> PreflightEnded | None:
        """End the preflight before its time, unless it is over, or tests none of these hosts."""
        if not any(hosts is None or self.members[node].offer.host in hosts for node in self.orders):
            return None
        self.orders, self.holds_until, self.stopped = {}, -math.inf, why
        return self.end_record(f"stopped: {why}")

    def end_record(self, text: str) -> PreflightEnded:
        """Return the record of the end of the preflight."""
        return PreflightEnded(self.run.job, self.run.id, clip(text, MESSAGE_MAX))
