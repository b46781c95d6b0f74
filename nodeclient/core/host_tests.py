"""The tests of this host: its health checks, and tests with another node, by which the coordinator finds bad hosts.

This node runs them and reports their results. It decides nothing by them.
"""

from __future__ import annotations

from coordinatord.protocol.messages import Desired, Goal, Phase
from coordinatord.protocol.pair_messages import PairOrder, PairResult
from nodeclient.core.effects import RunPairTest
from nodeclient.core.events import PairTested
from nodeclient.core.health_checks import HealthChecks


class HostTests:
    """The tests of one host. A test with another node runs while the coordinator wants it and no worker lives."""

    def __init__(self, *, checks_health: bool) -> None:
        self.checks = HealthChecks(wanted=checks_health)
        self._order: PairOrder | None = None
        """The test that the coordinator wants, which may have ended; None if it wants none."""
        self.last_pair: PairResult | None = None
        """The result of the last test with another node that has ended."""

    def pursue_pair(self, desired: Desired | None, phase: Phase) -> list[RunPairTest]:
        """Begin the test with another node that is wanted, and end any other one."""
        waits = desired is not None and desired.goal is Goal.WAIT and not phase.has_workers
        wanted = desired.pair if desired is not None and waits else None
        if wanted == self._order:
            return []
        self._order = wanted
        return [RunPairTest(wanted)]

    def end_pair(self, event: PairTested) -> None:
        """Record the result of a test with another node, unless another one is wanted by now."""
        if self._order is not None and event.result.number == self._order.number:
            self.last_pair = event.result
