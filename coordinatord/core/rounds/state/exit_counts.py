"""Counts the workers of a round that have ended without an error, and those that have not, as their nodes report them.

A job succeeds once all its workers have ended. So one that never ends, because it is stuck in a destructor or waits in
an exit handler, keeps the job running for ever, and nothing else shows it.
"""

from __future__ import annotations

from collections.abc import Iterable

from coordinatord.core.rounds.values.due_times import LONG_AGO
from coordinatord.core.rounds.values.ranks import Ranks
from coordinatord.protocol.messages import Observed, Phase

EXIT_PATIENCE_S = 10.0
"""How many seconds after the last exit the workers that have not ended are named. Workers of one training mostly end
within seconds of each other."""


class ExitCounts:
    """The exits in the current round. Times are in the coordinator's clock."""

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
