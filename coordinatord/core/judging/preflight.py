"""A preflight, which looks for bad hosts before they end a round: nodes without workers are tested in pairs, in turns.

This module has the orders and results of one turn; `pair_search` chooses the pairs and draws the conclusions. Neither
orders nor results are recorded: after a restart of the coordinator there is no preflight, and nodes end their tests.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from coordinatord.core.judging.pair_search import PairSearch
from coordinatord.core.rounds.queries.master_address import master_address
from coordinatord.core.rounds.state.member import Member, MemberState
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.due_times import NOW
from coordinatord.protocol.pair_messages import PairOrder, PairResult

GRACE_S = 2.0
"""How many seconds longer than its tests a turn takes at most: a heartbeat for the orders and one for the results."""


def testable(run: Run) -> list[Member]:
    """Return the members of a run that wait without workers, and so may be tested, sorted by host."""
    waiting = run.roll.in_state(MemberState.READY, MemberState.QUARANTINED)
    return sorted(waiting, key=lambda member: (member.offer.host, member.node))


class Preflight:
    """One preflight of some members of a run. Those that leave the run or get workers meanwhile are tested no more."""

    def __init__(
        self, run: Run, members: Sequence[Member], why: str, number: int, now: float, delays_until: float
    ) -> None:
        """Begin the first turn, whose tests have this number; the next round waits for the tests until `delays_until`.

        Without members it is over at once, so a run that never had a preflight has an empty one.
        """
        self._run = run
        self.members = {member.node: member for member in members}
        """The members by node id. A younger process with the same id is another member: it may be on another host."""
        self.search = PairSearch({member.node: member.offer.host for member in members})
        self.why, self.stopped = why, ""
        """Why it was begun, and why it was ended before its time; empty if it was not."""
        self.number = number
        """The number of this turn's tests, higher than that of any earlier test of these nodes."""
        self.delays_until = delays_until
        self._order_tests(now)

    def _order_tests(self, now: float) -> None:
        """Order the tests of the search's turn, except those of nodes that no longer wait without workers."""
        waiting = {member.node: member for member in testable(self._run) if self.members.get(member.node) is member}
        self.orders: dict[str, PairOrder] = {}
        """The order of each node in this turn; empty once the preflight is over."""
        within_s = self._run.policy.pair_timeout_s
        for pair in self.search.pairs:
            first, second = waiting.get(pair[0]), waiting.get(pair[1])
            if first is not None and second is not None:
                at = master_address(first, [first, second]), first.observed.port
                for rank, node, partner in (0, first.node, second.node), (1, second.node, first.node):
                    self.orders[node] = PairOrder(self.number, rank, partner, *at, within_s)
        self._results: dict[str, PairResult] = {}
        """The results of this turn so far."""
        self.awaited = set(self.orders)
        """The nodes whose results are still to come; the turn ends early when none is left."""
        self.ends_at = now + within_s + GRACE_S
        """When the turn is over, even if results are still to come."""
        if self.is_over:
            self.delays_until = NOW

    @property
    def is_over(self) -> bool:
        """Whether no node is ordered to run a test any more."""
        return not self.orders

    def report(self, member: Member) -> None:
        """Record the result that a member has reported, if it is of this turn."""
        result = member.observed.pair
        if member.node in self.awaited and result is not None and result.number == self.number:
            self._results[member.node] = result
            self.awaited.discard(member.node)

    def end_turn(self, now: float) -> None:
        """Let the search find what the results of the turn show, and begin the next turn, if there is one."""
        self.search.end_turn(self._results)
        self.number += 1
        self._order_tests(now)

    def postpone(self, by: float) -> None:
        """Put off all deadlines by so many seconds, in which the coordinator was asleep."""
        self.ends_at += by
        self.delays_until += by

    def stop(self, why: str, hosts: Collection[str] | None) -> bool:
        """End it before its time; return False if it is over, or tests none of these hosts."""
        if not any(hosts is None or self.members[node].offer.host in hosts for node in self.orders):
            return False
        self.orders, self.delays_until, self.stopped = {}, NOW, why
        return True
