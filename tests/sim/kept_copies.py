"""The copies of other nodes' state that a simulated node keeps, for the loss of their hosts."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import structs

from coordinatord.protocol.fields import STEP_MAX
from coordinatord.protocol.kept_state import KeptCopy, KeptParts, KeptStep
from nodeclient.core.events import KeptChanged

if TYPE_CHECKING:  # memories have one
    from tests.sim.host import Host
    from tests.sim.kept_memory import KeptMemory
    from tests.sim.world import World

COPY_S = 0.3
"""The longest time to write a state, which is whole only at the end."""

GARBLED = 0.02
"""The share of transfers that arrive damaged."""

AGAIN_S = 1.0
"""The longest pause before another try to get a copy."""

NO_ROOM = 0.1
"""The share of nodes without memory for copies."""

Chain = tuple[KeptStep, ...]


class Keeps(StrEnum):
    """The kind of state that workers keep."""

    SHARED = "shared"
    """All have the same state, and save it when the round breaks."""
    UNIQUE = "unique"
    """Each has a shard of its own, and saves it at an interval."""


@dataclass(frozen=True)
class Stored:
    """A state in memory."""

    run: str
    parts: KeptParts
    chain: Chain
    whole: bool = True
    damaged: bool = False


def compared(world: World, chain: Chain) -> tuple[Chain, int | None]:
    """Return the state that a worker saves, and its digest. In some scenarios it may be another than that of others."""
    if world.scenario.states_differ and world.chance.random() < world.scenario.states_differ:
        chain = (*chain, KeptStep(0, world.chance.randrange(STEP_MAX)))
    return chain, zlib.crc32(repr(chain).encode())


class KeptCopies:
    """The copies that one life of a nodeclient has: two places for each rank, and a third one beside a disk."""

    def __init__(self, host: Host, world: World, memory: KeptMemory) -> None:
        self._host, self._world, self._memory = host, world, memory
        self._places = 2 if world.scenario.persist_every_s is None else 3
        self._of_rank: dict[int, list[Stored | None]] = {}
        self._wanted: list[tuple[KeptCopy, int]] = []
        self._at_work = False
        self._has_room = not world.scenario.copies or world.chance.random() >= NO_ROOM

    @property
    def problem(self) -> str:
        """Why it has no copies; empty if it has the wanted ones, or gets them."""
        return "no memory" if self._wanted and not self._has_room else ""

    @property
    def places(self) -> Iterator[Stored | None]:
        """All of its places."""
        return (place for places in self._of_rank.values() for place in places)

    def clear(self) -> None:
        """Drop everything."""
        self._of_rank, self._wanted = {}, []

    def withdraw(self, stored: Stored) -> None:
        """Drop a damaged state."""
        for places in self._of_rank.values():
            places[:] = [None if place == stored else place for place in places]

    def want(self, copies: tuple[KeptCopy, ...]) -> None:
        """Get these copies, and no others; copies that it has stay while they are protected."""
        self._wanted = [
            (copy, rank)
            for copy in copies
            for part in copy.source.parts
            for rank in range(part.first_rank, part.first_rank + part.ranks)
        ]
        wanted = {rank for _, rank in self._wanted}
        self._of_rank = {
            rank: places
            for rank, places in self._of_rank.items()
            if rank in wanted or not all(place is None or self._is_free(place) for place in places)
        }
        if self._wanted and self._has_room and not self._at_work:
            self._at_work = True
            self._memory.later(COPY_S, self._begin_next)

    def _is_free(self, stored: Stored) -> bool:
        return not stored.whole or stored.parts.at not in self._memory.protected

    def _begin_next(self) -> None:
        """Begin to get a missing copy, in the place of one that is not protected."""
        run = self._memory.key[0]
        missing = [wanted for wanted in self._wanted if self._memory.find(run, wanted[0].at, wanted[1]) is None]
        self._at_work = bool(missing)
        if not missing:
            return
        copy, rank = self._world.chance.choice(missing)
        hosts = (
            host for host in self._world.hosts.values() if host.node == copy.source.node and host.memory is not None
        )
        holder = next(hosts, None)
        memory = None if holder is None or holder.is_cut or holder.paused else holder.memory
        stored = None if memory is None else memory.find(run, copy.at, rank)
        places = self._of_rank.setdefault(rank, [None] * self._places)
        free = [number for number, place in enumerate(places) if place is None or self._is_free(place)]
        if memory is None or stored is None or not free:
            self._memory.later(AGAIN_S, self._begin_next)
            return
        own = structs.replace(stored.parts, first_rank=rank, ranks=1, first_shard=rank % stored.parts.shards)
        coming = replace(stored, parts=own, whole=False)
        places[free[0]] = coming
        self._memory.later(COPY_S, self._end, rank, coming, stored, memory)

    def _end(self, rank: int, coming: Stored, stored: Stored, holder: KeptMemory) -> None:
        """Keep a copy that has arrived, unless its holder has overwritten it meanwhile, or it arrived damaged."""
        places = self._of_rank.get(rank, [])
        number = next((number for number, place in enumerate(places) if place is coming), None)
        if number is not None:
            there = stored in holder.stored
            if there and stored.damaged:
                holder.withdraw(stored)
            right = there and not stored.damaged and self._world.chance.random() >= GARBLED
            places[number] = replace(coming, whole=True) if right else None
            if right:
                self._host.submit(KeptChanged())
        self._begin_next()
