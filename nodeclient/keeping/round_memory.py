"""The memory for the state of one round's workers, and its loans from ended workers to live ones."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple

from nodeclient.core.effects import Level
from nodeclient.keeping.parts.arenas import NoMemoryError
from nodeclient.keeping.resources import KeepResources
from nodeclient.keeping.round_workers import RoundWorkers
from nodeclient.keeping.worker_channel import WorkerChannel
from workerlib.contract.arena import ArenaError, ArenaSizes
from workerlib.contract.channel_messages import RefusedMemory, Reserve, Reserved


class Loan(NamedTuple):
    """The memory of a worker that has ended, for one that is left; both are local ranks."""

    owner: int
    borrower: int


@dataclass(slots=True)
class RoundMemory:
    """Tracks which workers of a round have memory for big state, and lends that of ended ones."""

    reserving: set[int] = field(default_factory=set)
    """The workers that wait for an arena."""
    _wanted: dict[int, Reserve] = field(default_factory=dict)
    """What each worker has asked for last."""
    _memory_of: dict[int, int] = field(default_factory=dict)
    """The workers that have memory for their big state, each with the local rank whose arena it is."""
    _ended: dict[int, None] = field(default_factory=dict)
    """The workers that have ended, in order. Only their memory is lent: they no longer write into it."""

    def begin(self, local_rank: int, wanted: Reserve) -> bool:
        """Record that a worker asks for memory; return whether it is to get any."""
        if local_rank in self.reserving or local_rank in self._ended:
            return False
        self.reserving.add(local_rank)
        self._wanted[local_rank] = wanted
        self._memory_of.pop(local_rank, None)
        return True

    def give(self, local_rank: int) -> None:
        """Record that a worker has got the memory that it asked for, even if it has ended meanwhile."""
        if self._wanted[local_rank].generation:
            self._memory_of[local_rank] = local_rank

    def end(self, local_rank: int) -> None:
        """Record that the process of a worker has ended."""
        self._ended[local_rank] = None

    def lend(self, able: AbstractSet[int]) -> Loan | None:
        """Lend the memory of a worker that has ended, if no other has memory for the same big state.

        The borrower is `able` to save, and waits for no memory. A loan that is needless now may be needed later, when
        the worker with such memory ends too. Return None if nothing is lent.
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
        part = self._wanted[owner].shard, self._wanted[owner].shards
        others = (able - self.reserving - self._ended.keys()) & self._wanted.keys()
        of_same = [rank for rank in others if (self._wanted[rank].shard, self._wanted[rank].shards) == part]
        if not of_same or not self._memory_of.keys().isdisjoint(of_same):
            return None
        return min(of_same)


class ArenaGiver:
    """Gives the workers of a round their memory, and lends that of one that has ended to one that is left."""

    def __init__(
        self,
        resources: KeepResources,
        channel: WorkerChannel,
        workers: RoundWorkers,
        on_given: Callable[[int, bool], None],
    ) -> None:
        """Serve these workers; `on_given` gets each local rank that got an arena, and whether it is lent."""
        self._resources = resources
        self._channel = channel
        self._workers = workers
        self._on_given = on_given
        self.memory = RoundMemory()
        self._over = False

    def give_up(self) -> None:
        """Give no more arenas: another round begins."""
        self._over = True

    def take(self, local_rank: int, wanted: Reserve) -> None:
        """Handle a worker's request for memory."""
        if self.memory.begin(local_rank, wanted):
            self._resources.tasks.spawn(self._reserve(local_rank, wanted), name="reserve")

    def lend(self) -> None:
        """Lend the memory of workers that have ended to those that have none for the same state."""
        if self._over or self._workers.alike is False:
            return
        # A worker that a signal has stopped saves nothing.
        while (loan := self.memory.lend(self._channel.connected - self._channel.stopped)) is not None:
            file = self._resources.arenas.file_of(loan.owner)
            if file is not None:
                self._send(loan.borrower, file, lent=True)

    async def _reserve(self, local_rank: int, wanted: Reserve) -> None:
        resources, memory = self._resources, self.memory
        try:
            file = await resources.arenas.reserve(local_rank, ArenaSizes.at_least(wanted.generation, wanted.small))
        except (NoMemoryError, ArenaError) as error:
            text = f"the state of local rank {local_rank} is not kept: {error}"
            resources.notify(Level.WARNING, text, "state_not_kept")
            small = await resources.arenas.reserve_small(local_rank, wanted.small)
            if not self._over:
                self._channel.send(local_rank, RefusedMemory(str(error)), [] if small is None else [small])
        else:
            memory.give(local_rank)
            if not self._over:
                self._send(local_rank, file)
        finally:
            memory.reserving.discard(local_rank)
        # Meanwhile this worker may have ended, or another one whose memory it now needs.
        self.lend()

    def _send(self, local_rank: int, file: int, *, lent: bool = False) -> None:
        disk = self._resources.disk
        self._channel.send(local_rank, Reserved(0.0 if disk is None else disk.settings.offer.every_s, lent), [file])
        if local_rank in self._channel.connected:
            self._on_given(local_rank, lent)
