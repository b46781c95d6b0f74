"""What is known of the ends of a round's workers: which ones failed or ended well, and which nodes were lost.

It is collected while the round goes on and while it is stopped. Why the round ended is judged only when no worker lives
any more (`queries/past_round.verdict`), since the first sign that arrives is often a consequence of another.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.state.durable import DurableRun
from coordinatord.core.rounds.state.member import Member
from coordinatord.core.rounds.values.due_times import LONG_AGO
from coordinatord.core.rounds.values.ranks import Ranks
from coordinatord.core.rounds.values.root_cause import CLOCK_DRIFT, WorkerFailure
from coordinatord.hints.network import lost_connection
from coordinatord.protocol.messages import Failure, Observed, Phase

EXIT_PATIENCE_S = 10.0
"""How many seconds after the last exit the workers that have not ended are named. Workers of one training mostly end
within seconds of each other."""


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


class ExitCounts:
    """Counts the workers of the current round that have ended without an error, and those that have not.

    A job succeeds once all its workers have ended. So one that never ends, because it is stuck in a destructor or waits
    in an exit handler, keeps the job running for ever, and nothing else shows it.
    """

    def __init__(self, succeeded: Iterable[Ranks] = ()) -> None:
        """Begin with nodes whose success is on record; the others are yet to report."""
        self._ended = {own.node: own.workers for own in succeeded}
        self._living: dict[str, int] = {}
        self.ended, self.living = sum(self._ended.values()), 0
        """How many workers have ended without an error, and how many are known to live. Those of a node that has not
        reported since the coordinator was started are in neither number, unless its success is on record."""
        self.last_at = LONG_AGO
        """When the last exit was reported, or a node first reported: its workers may have ended just before."""

    def record(self, own: Ranks, observed: Observed, heard_at: float) -> None:
        """Record a node's report about the round, in which it has the ranks `own`."""
        living = len(living_ranks(own, observed))
        ended = own.workers - living
        before = self._ended.get(own.node, 0)
        self.ended += ended - before
        self.living += living - self._living.get(own.node, 0)
        if ended > before or own.node not in self._living:
            self.last_at = heard_at
        self._ended[own.node], self._living[own.node] = ended, living


def living_ranks(own: Ranks, observed: Observed) -> list[int]:
    """Return those of a node's ranks whose workers have not ended, by its report about a round that is on.

    A node that reports no process ids names only some of its ended workers: the others count as living until it
    succeeds.
    """
    if observed.phase is Phase.SUCCEEDED:
        return []
    ranks = range(own.first_rank, own.first_rank + own.workers)
    if observed.pids:
        return [rank for rank, pid in zip(ranks, observed.pids, strict=False) if pid]  # 0: ended
    gone = {ended.rank for ended in observed.ended}
    return [rank for rank in ranks if rank not in gone]
