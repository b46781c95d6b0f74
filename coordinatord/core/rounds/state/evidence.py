"""What is known of why a round ends: failures of its workers, its lost nodes, and what counts as a consequence."""

from __future__ import annotations

import math

from msgspec.structs import replace

from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.state.durable import DurableRun
from coordinatord.core.rounds.state.member import Member
from coordinatord.core.rounds.values.root_cause import RoundVerdict, WorkerFailure, find_root_cause
from coordinatord.hints.network import lost_connection
from coordinatord.protocol.messages import Failure


class Evidence:
    """The evidence about one round. Times are in the coordinator's clock."""

    def __init__(self) -> None:
        """Begin with nothing against any node."""
        self.failures: dict[str, WorkerFailure] = {}
        """The first failure of each node, by node: nodes repeat their reports, and all may fail of one cause."""
        self.lost_at: float | None = None
        """When the first node that the current round lost was last known to live; None if it lost none."""
        self.consequences_from: float | None = None
        """When failures begin to be consequences of the round's stop; None if it was a failure that stopped it."""
        self.stop_overdue_at = 0.0
        """When the others stop waiting for a node that cannot end its workers."""

    def begin_round(self) -> None:
        """Begin a round; nothing is known against any of its nodes yet."""
        self.failures, self.lost_at = {}, None

    def begin_stop(self, durable: DurableRun, slowest_s: float, policy: Policy, at: float) -> None:
        """Begin the stop of a round whose workers have up to `slowest_s` seconds to end."""
        self.consequences_from = at if durable.first_failure is None else None
        self.stop_overdue_at = at + slowest_s + policy.stop_limit_s

    def after_restart(self, durable: DurableRun) -> None:
        """Go on after the coordinator was away.

        What fails in a round that was being stopped, and not for a failure, counts as a consequence of the stop.
        Whether it failed earlier is not known: the time of the stop rests on a clock that may have been set meanwhile.
        """
        if self.consequences_from is not None:
            self.consequences_from = -math.inf
        if durable.first_failure is not None:
            self.failures[durable.first_failure.node] = durable.first_failure

    def record_loss(self, at: float) -> None:
        """Record that the round has lost a node, which was last known to live at this time."""
        self.lost_at = at if self.lost_at is None else min(self.lost_at, at)

    def record_failure(self, member: Member, failure: Failure, now: float) -> None:
        """Keep a worker's failure as evidence, one for each node and round.

        Later failures of its workers are added. If the first one was a lost connection, another kind takes its place.
        """
        known = self.failures.get(member.node)
        if known is None or (lost_connection(known.failure) and not lost_connection(failure)):
            at, leaving = now - failure.age_s, member.observed.leaving
            self.failures[member.node] = WorkerFailure(member.node, member.offer.host, at, failure, leaving)
        elif len(failure.followers) > len(known.failure.followers):
            self.failures[member.node] = replace(known, failure=replace(known.failure, followers=failure.followers))

    @property
    def first(self) -> WorkerFailure | None:
        """The earliest failure; None if no worker has failed."""
        return min(self.failures.values(), key=lambda failure: failure.at, default=None)

    def verdict(self, durable: DurableRun, collateral_s: float) -> RoundVerdict:
        """Judge what ended the round, by the evidence so far."""
        failures = self.failures.values()
        return find_root_cause(
            durable.stop_reason.sentence, self.consequences_from, failures, durable.losses, collateral_s
        )
