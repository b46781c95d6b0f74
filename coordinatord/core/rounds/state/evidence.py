"""The evidence of why a round ends: the failures of its workers and its lost nodes.

It is collected while the round goes on and while it is stopped. It is judged only when no worker lives any more
(`queries/past_round.verdict`), since the first sign that arrives is often a consequence of another.
"""

from __future__ import annotations

from msgspec.structs import replace

from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.state.durable import DurableRun
from coordinatord.core.rounds.state.member import Member
from coordinatord.core.rounds.values.due_times import LONG_AGO
from coordinatord.core.rounds.values.root_cause import CLOCK_DRIFT, WorkerFailure
from coordinatord.hints.network import lost_connection
from coordinatord.protocol.messages import Failure


class Evidence:
    """The evidence on one round of a run, the current or last one. Times are in the coordinator's clock."""

    def __init__(self) -> None:
        self.failures: dict[str, WorkerFailure] = {}
        """The first failure of each node, by node."""
        self.failed_too: dict[str, WorkerFailure] = {}
        """The first worker of each node that met an error of its own and was stopped before it exited, while the node
        reports no failure. It counts only if its error is that of the root cause (`find_root_cause`)."""
        self.lost_at: float | None = None
        """When the first node that the current round lost was last known to live; None if it lost none."""
        self.consequences_from: float | None = None
        """The time since which failures count as consequences of the stop; None if a worker had failed before it. Like
        `stop_overdue_at`, it is set by each stop, and read only while a round is stopped."""
        self.stop_overdue_at = 0.0
        """When the round ends without the nodes that have not ended their workers."""

    def begin_stop(self, durable: DurableRun, stop_timeout_s: float, policy: Policy, at: float) -> None:
        """Begin the stop of a round whose workers have up to `stop_timeout_s` seconds to end."""
        self.consequences_from = at if durable.first_failure is None else None
        self.stop_overdue_at = at + stop_timeout_s + policy.stop_limit_s

    def after_restart(self, durable: DurableRun) -> None:
        """Go on after a restart of the coordinator; while a round is being stopped, `begin_stop` comes first.

        If no failure caused the stop of the round, all its failures count as consequences. It is not known which of
        them came before the stop, since the coordinator's clock may have been set meanwhile.
        """
        if self.consequences_from is not None:
            self.consequences_from = LONG_AGO
        if durable.first_failure is not None:
            self.failures[durable.first_failure.node] = durable.first_failure

    def record_loss(self, at: float) -> None:
        """Record that the round has lost a node, which was last known to live at this time."""
        self.lost_at = at if self.lost_at is None else min(self.lost_at, at)

    def record_failure(self, member: Member, failure: Failure, now: float) -> None:
        """Record a reported failure, if it is the first of its node in the round; nodes repeat their reports.

        A worker that its node stopped goes to `failed_too`. A lost connection is replaced by a failure of another kind.
        A repeated report may add followers, or date the same failure earlier: then the first report came late, as after
        an outage of the network.
        """
        known, at = self.failures.get(member.node), now - failure.age_s
        if failure.stopped:
            if known is None:
                self.failed_too[member.node] = WorkerFailure(member.node, member.offer.host, at, failure)
            return
        # If the worker in `failed_too` had the same error, its node now reports it as a follower of this failure.
        self.failed_too.pop(member.node, None)
        if known is None or (lost_connection(known.failure) and not lost_connection(failure)):
            leaving = member.observed.leaving
            self.failures[member.node] = WorkerFailure(member.node, member.offer.host, at, failure, leaving)
            return
        if failure.pid == known.failure.pid and at < known.at - CLOCK_DRIFT * failure.age_s:
            known = replace(known, at=at, failure=replace(known.failure, age_s=failure.age_s))
        if len(failure.followers) > len(known.failure.followers):
            known = replace(known, failure=replace(known.failure, followers=failure.followers))
        self.failures[member.node] = known

    @property
    def first(self) -> WorkerFailure | None:
        """The earliest failure; None if no worker has failed."""
        return min(self.failures.values(), key=lambda failure: failure.at, default=None)
