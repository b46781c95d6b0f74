"""What a simulated node keeps of other nodes' state: copies, for the loss of their hosts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from coordinatord.protocol.kept_parts import KeptParts, KeptStep
from coordinatord.protocol.kept_state import KeptCopy
from nodeclient.core.events import KeptChanged

if TYPE_CHECKING:  # memories have one
    from tests.sim.host import Host
    from tests.sim.kept_memory import KeptMemory
    from tests.sim.world import World

COPY_S = 0.3
"""How long it takes to write a state at most; it is not whole before the end."""

GARBLED = 0.02
"""How often what arrives is not what was sent."""

AGAIN_S = 1.0
"""The pause before a copy that could not be had is asked for again, at most."""

NO_ROOM = 0.1
"""How many nodes have no memory for copies."""

Chain = tuple[KeptStep, ...]


@dataclass(frozen=True)
class Stored:
    """A state in memory."""

    run: str
    parts: KeptParts
    chain: Chain
    whole: bool = True
    damaged: bool = False


class KeptCopies:
    """The copies that one life of a nodeclient has: two places for each rank."""

    def __init__(self, host: Host, world: World, memory: KeptMemory) -> None:
        self._host, self._world, self._memory = host, world, memory
        self._of_rank: dict[int, list[Stored | None]] = {}
        self._wanted: list[tuple[KeptCopy, int]] = []
        self._at_work = False
        self._has_room = not world.scenario.copies or world.chance.random() >= NO_ROOM

    @property
    def problem(self) -> str:
        """Why it has no copies; empty if it has those that are wanted, or gets them."""
        return "no memory" if self._wanted and not self._has_room else ""

    @property
    def places(self) -> Iterator[Stored | None]:
        """All of its places."""
        return (place for places in self._of_rank.values() for place in places)

    def clear(self) -> None:
        """Drop everything."""
        self._of_rank, self._wanted = {}, []

    def withdraw(self, stored: Stored) -> None:
        """Give up what is damaged."""
        for places in self._of_rank.values():
            places[:] = [None if place == stored else place for place in places]

    def want(self, copies: tuple[KeptCopy, ...]) -> None:
        """Get these copies, and no others; those that are here stay while they are protected."""
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
        """Begin to get a copy that is not here, over one that is not protected."""
        run = self._memory.key[0]
        missing = [wanted for wanted in self._wanted if self._memory.find(run, wanted[0].at, wanted[1]) is None]
        self._at_work = bool(missing)
        if not missing:
            return
        copy, rank = self._world.chance.choice(missing)
        holder = next((host for host in self._world.hosts.values() if host.node == copy.source.node), None)
        memory = None if holder is None or holder.is_cut or holder.paused else holder.memory
        stored = None if memory is None else memory.find(run, copy.at, rank)
        places = self._of_rank.setdefault(rank, [None, None])
        free = [number for number, place in enumerate(places) if place is None or self._is_free(place)]
        if memory is None or stored is None or not free:
            self._memory.later(AGAIN_S, self._begin_next)
            return
        own = replace(stored.parts, first_rank=rank, ranks=1, first_shard=rank % stored.parts.shards)
        coming = replace(stored, parts=own, whole=False)
        places[free[0]] = coming
        self._memory.later(COPY_S, self._end, rank, coming, stored, memory)

    def _end(self, rank: int, coming: Stored, stored: Stored, holder: KeptMemory) -> None:
        """Keep a copy that has come, unless its holder has overwritten it meanwhile, or it is not what was sent."""
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
