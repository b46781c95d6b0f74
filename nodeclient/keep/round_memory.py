"""Which workers of a round have memory for their big state, and who gets that of a worker that has ended."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple

from workerlib.keep.channel_messages import Reserve


class Loan(NamedTuple):
    """The memory of a worker that has ended, for one that is left; both are local ranks."""

    owner: int
    borrower: int


@dataclass(slots=True)
class RoundMemory:
    """The memory of one round's workers, each by its local rank."""

    reserving: set[int] = field(default_factory=set)
    """The workers that wait for an arena."""
    _wanted: dict[int, Reserve] = field(default_factory=dict)
    """What each worker has asked for last."""
    _memory_of: dict[int, int] = field(default_factory=dict)
    """The workers that have memory for their big state, each with the local rank whose arena it is."""
    _ended: dict[int, None] = field(default_factory=dict)
    """The workers that have ended, in that order. Only their memory is lent: nobody else writes into it."""

    def begin(self, local_rank: int, wanted: Reserve) -> bool:
        """Note that a worker asks for memory; return whether it is to get any."""
        if local_rank in self.reserving or local_rank in self._ended:
            return False
        self.reserving.add(local_rank)
        self._wanted[local_rank] = wanted
        self._memory_of.pop(local_rank, None)
        return True

    def give(self, local_rank: int) -> None:
        """Note that there is memory for what a worker has asked for, even if it has ended meanwhile."""
        if self._wanted[local_rank].generation:
            self._memory_of[local_rank] = local_rank

    def end(self, local_rank: int) -> None:
        """Note that the process of a worker has ended."""
        self._ended[local_rank] = None

    def lend(self, able: AbstractSet[int]) -> Loan | None:
        """Lend the memory of a worker that has ended, if no other has the same big state and memory for it.

        One of those that are `able` to save, and wait for no memory, gets it. What was not lent may be lent later: the
        worker that makes the loan needless may end too. Return None if nothing is lent.
        """
        for ended in reversed(self._ended):
            if ended in self._memory_of and (borrower := self._borrower(ended, able)) is not None:
                owner = self._memory_of[borrower] = self._memory_of.pop(ended)
                return Loan(owner, borrower)
        return None

    def awaited(self, connected: AbstractSet[int]) -> set[int]:
        """Return the workers whose connection is gone, and whose memory is lent once their process has ended."""
        gone = self._memory_of.keys() - connected - self._ended.keys()
        return {local_rank for local_rank in gone if self._borrower(local_rank, connected) is not None}

    def _borrower(self, owner: int, able: AbstractSet[int]) -> int | None:
        state = self._wanted[owner]
        others = able - self.reserving - self._ended.keys()
        of_same = [rank for rank in others if rank in self._wanted and _is_same_part(self._wanted[rank], state)]
        if not of_same or not self._memory_of.keys().isdisjoint(of_same):
            return None
        return min(of_same)


def _is_same_part(one: Reserve, other: Reserve) -> bool:
    """Whether two workers have the same part of the big state."""
    return (one.shard, one.shards) == (other.shard, other.shards)
