"""Provides the workers of one round with memory for their state, and lends the memory of ended workers to living ones.

Ranks often have the same weights. Then only some workers of a node ask for memory to save them, and the others could
save them as well. If a round breaks because the workers with memory have ended, a living worker with the same shard of
the state gets the arena of one that has ended, and saves into it. Otherwise this node would keep an older step.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from nodeclient.core.effects import Level
from nodeclient.keeping.parts.arena_memory import NoMemoryError
from nodeclient.keeping.resources import KeepResources
from nodeclient.keeping.round_workers import RoundWorkers
from nodeclient.keeping.worker_channel import WorkerChannel
from workerlib.contract.arena import ArenaError, ArenaSizes
from workerlib.contract.channel_messages import RefusedMemory, Reserve, Reserved


class Loan(NamedTuple):
    """The memory of an ended worker, lent to a living one."""

    owner: int
    """The local rank whose arena it is."""
    borrower: int
    """The local rank that saves into it."""


@dataclass(slots=True)
class RoundMemory:
    """Decides whose memory is lent to whom. Workers are known by their local ranks. Pure."""

    reserving: set[int] = field(default_factory=set)
    """The workers that wait for an arena."""
    _wanted: dict[int, Reserve] = field(default_factory=dict)
    """The last request of each worker."""
    _memory_of: dict[int, int] = field(default_factory=dict)
    """The workers that have memory for their big state, each with the owner of the arena."""
    _ended: dict[int, None] = field(default_factory=dict)
    """The ended workers, in order. Only their memory is lent, since they no longer write into it."""

    def request(self, local_rank: int, wanted: Reserve) -> bool:
        """Record a worker's request for memory; return False if it already waits for some, or has ended."""
        if local_rank in self.reserving or local_rank in self._ended:
            return False
        self.reserving.add(local_rank)
        self._wanted[local_rank] = wanted
        self._memory_of.pop(local_rank, None)
        return True

    def record_reserved(self, local_rank: int) -> None:
        """Record that the requested memory of a worker exists, even if the worker has ended meanwhile."""
        if self._wanted[local_rank].generation:
            self._memory_of[local_rank] = local_rank

    def end(self, local_rank: int) -> None:
        """Record that the process of a worker has ended."""
        self._ended[local_rank] = None

    def lend(self, able: AbstractSet[int]) -> Loan | None:
        """Lend the memory of an ended worker, if no other has memory for the same big state.

        The borrower is among the workers that are `able` to save, and waits for no memory. Return None if no loan is
        needed now; one may be needed when the worker with such memory ends too.
        """
        for ended in reversed(self._ended):
            if ended in self._memory_of and (borrower := self._borrower(ended, able)) is not None:
                owner = self._memory_of.pop(ended)
                self._memory_of[borrower] = owner
                return Loan(owner, borrower)
        return None

    def awaited(self, connected: AbstractSet[int]) -> set[int]:
        """Return the workers whose memory will be lent: their connection is gone, but their process lives as yet."""
        gone = self._memory_of.keys() - connected - self._ended.keys()
        return {local_rank for local_rank in gone if self._borrower(local_rank, connected) is not None}

    def _borrower(self, lender: int, able: AbstractSet[int]) -> int | None:
        """Return the worker to get the memory of `lender`; None if none can, or one has memory for the same shard."""
        shard = self._wanted[lender].shard, self._wanted[lender].shards
        others = (able - self.reserving - self._ended.keys()) & self._wanted.keys()
        alike = [rank for rank in others if (self._wanted[rank].shard, self._wanted[rank].shards) == shard]
        if not alike or not self._memory_of.keys().isdisjoint(alike):
            return None
        return min(alike)


class MemoryProvider:
    """Reserves memory for the workers of a round, and sends it to them."""

    def __init__(
        self,
        resources: KeepResources,
        channel: WorkerChannel,
        workers: RoundWorkers,
        on_reserved: Callable[[int, bool], None],
    ) -> None:
        """Serve these workers; `on_reserved` gets the local rank of each that got memory, and whether it is lent."""
        self._resources = resources
        self._channel = channel
        self._workers = workers
        self._on_reserved = on_reserved
        self._memory = RoundMemory()
        self._closed = False

    def close(self) -> None:
        """Provide no more memory, because another round begins."""
        self._closed = True

    @property
    def awaited(self) -> set[int]:
        """The workers whose memory will be lent once their processes end."""
        return self._memory.awaited(self._channel.connected)

    def end(self, local_rank: int) -> None:
        """Record that the process of a worker has ended."""
        self._memory.end(local_rank)

    def request(self, local_rank: int, wanted: Reserve) -> None:
        """Handle a worker's request for memory."""
        if self._memory.request(local_rank, wanted):
            self._resources.tasks.spawn(self._reserve(local_rank, wanted), name="reserve")

    def lend(self) -> None:
        """Lend the memory of ended workers to living ones that need it."""
        if self._closed or self._workers.alike is False:  # where states differ, no worker can save that of another
            return
        # A worker that a signal has stopped saves nothing.
        while (loan := self._memory.lend(self._channel.connected - self._channel.stopped)) is not None:
            file = self._resources.arenas.file_of(loan.owner)
            if file is not None:
                self._send(loan.borrower, file, lent=True)

    async def _reserve(self, local_rank: int, wanted: Reserve) -> None:
        resources, memory = self._resources, self._memory
        reserve = resources.arenas.reserve
        try:
            file = await reserve(local_rank, ArenaSizes.at_least(wanted.generation, wanted.small))
        except (NoMemoryError, ArenaError) as error:
            text = f"the state of local rank {local_rank} is not kept: {error}"
            resources.notify(Level.WARNING, text, "state_not_kept")
            small = []  # the arena for only the small state, if memory suffices for that
            with suppress(NoMemoryError, ArenaError):
                small = [await reserve(local_rank, ArenaSizes.at_least(0, wanted.small))]
            if not self._closed:
                self._channel.send(local_rank, RefusedMemory(str(error)), small)
        else:
            memory.record_reserved(local_rank)
            if not self._closed:
                self._send(local_rank, file)
        finally:
            memory.reserving.discard(local_rank)
        # This worker may have ended meanwhile, or another one whose memory it now needs.
        self.lend()

    def _send(self, local_rank: int, file: int, *, lent: bool = False) -> None:
        disk = self._resources.disk
        disk_every_s = 0.0 if disk is None else disk.settings.offer.every_s
        self._channel.send(local_rank, Reserved(disk_every_s, lent), [file])
        if local_rank in self._channel.connected:
            self._on_reserved(local_rank, lent)
