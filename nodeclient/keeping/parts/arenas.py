"""The memory of a node for kept state. It belongs to this process, so it outlives the workers that write into it.

An *arena* is shared memory for the state of one rank (`workerlib.contract.arena` has its layout). It has *places*:
three *generations* for the big state of a step, which is weights and optimizer, and six for its small state. A place
that was written to the end is *whole* and holds a *part*, the state of that rank as of one step. Its control words, the
`Commit`, name the step. A small part is *pending* if it was written within its step, before all values were final. A
step is *protected* if the coordinator wants no node to overwrite what it has of it.

This node has three kinds of arenas:

* Its own, one for each local rank. A worker of a later round gets it again, with its contents. If it needs a larger
  one, the older one stays until the new one has a whole generation.
* Copies of parts that only one other node has, so that they survive its loss.
* Parts that were received for a round to resume from. They stay as long as their step is protected: the node that sent
  them may be gone, and the workers save nothing before their first step.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Collection, Iterator

from msgspec import Struct

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.fields import COUNTER_MAX, RANKS_MAX
from coordinatord.protocol.kept_state import KeptParts
from nodeclient.keeping.parts.arena_memory import ArenaMemory, NoMemoryError, Owned, size_in_words
from nodeclient.keeping.parts.digests import Digests, is_comparable
from nodeclient.keeping.parts.part_messages import Kind
from workerlib.contract.arena import HEADER_BYTES, Arena, ArenaSizes, Commit, Place, refusal_text

COPIES = 2
"""How many steps of another node's rank are copied: the protected one, and the candidate for its place."""

COPIES_WITH_DISK = 3
"""The same where nodes write to a disk, since a step that is being written is protected too."""


class Held(Struct, frozen=True):
    """A part of kept state in a place of an arena."""

    file: int
    """The descriptor of the arena."""
    place: Place
    commit: Commit
    kind: Kind

    @property
    def small(self) -> bool:
        """Whether the small state of the step is in it."""
        return self.kind is Kind.SMALL or self.commit.has_small


class DamagedPartError(OperationalError):
    """A part in memory is damaged."""

    def __init__(self, held: Held) -> None:
        super().__init__(f"the state of rank {held.commit.rank} at step {held.commit.step} is damaged in memory")
        self.held = held


class Arenas:
    """The arenas of one node. All methods are for the thread of the event loop."""

    def __init__(self, memory: ArenaMemory, copies: int) -> None:
        """Begin with none. `copies` is how many steps of another node's rank have a place here."""
        self.memory = memory
        self._places_of_copies = copies
        self._owned: dict[int, list[Owned]] = {}
        """The arenas of each local rank; the last one is in use."""
        self._reserving: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Held for each local rank that an arena is being reserved for."""
        self._copies: dict[int, list[Owned]] = {}
        """Copies of other nodes' parts, by rank; the last one is in use."""
        self._received: dict[int, list[Owned]] = {}
        """Parts that were received for a round to resume from, by rank."""
        self.run = ""
        """The run whose parts are held."""
        self._protected: dict[str, Collection[tuple[int, int]]] = {}
        """The protected rounds and steps, of this run and of one that may be entered next."""

    async def reserve(self, local_rank: int, sizes: ArenaSizes) -> int:
        """Return the file of an arena of at least these sizes for a local rank. Raises `NoMemoryError`.

        Copies and received parts are dropped if there is no memory otherwise: a worker comes before other nodes.
        """
        async with self._reserving[local_rank]:  # a worker of an earlier round may still be getting the same memory
            fitting = [owned for owned in self._owned.get(local_rank, ()) if owned.arena.sizes.has_room_for(sizes)]
            chosen = fitting[-1] if fitting else await self._allocate_own(sizes)
            others = [owned for owned in self._owned.get(local_rank, ()) if owned is not chosen]
            self._owned[local_rank] = [*others, chosen]
            return chosen.file

    async def _allocate_own(self, sizes: ArenaSizes) -> Owned:
        demand = f"to keep three generations of a worker's state takes {size_in_words(sizes.total)}"
        try:
            self.memory.claim(sizes, sizes.total, demand)
        except NoMemoryError:
            if not (self._copies or self._received):
                raise
            self._drop_all(self._copies, self._received)
            self.memory.claim(sizes, sizes.total, demand)
        return await self._allocate(sizes, sizes.total, demand)

    def file_of(self, local_rank: int) -> int | None:
        """Return the file of the arena of a local rank; None if it has none."""
        owned = self._owned.get(local_rank)
        return owned[-1].file if owned else None

    async def _allocate(self, sizes: ArenaSizes, backed_bytes: int, demand: str) -> Owned:
        """Allocate a new arena without blocking the event loop. Raises `NoMemoryError` with `demand`, its purpose."""
        try:
            # The memory is allocated now, since a worker that writes must not meet a lack of it. To zero the pages
            # takes a second for each gigabyte, so a thread does it.
            allocating = asyncio.ensure_future(asyncio.to_thread(self.memory.allocate, sizes, backed_bytes))
            owned = await asyncio.shield(allocating)
        except asyncio.CancelledError:  # a copy is not wanted any more, and the thread goes on
            allocating.add_done_callback(self._free)
            raise
        except OSError as error:
            raise NoMemoryError(f"{demand}, which the system refused: {refusal_text(error)}") from error
        owned.arena.protect(self._protected.get(self.run, ()))
        return owned

    def _free(self, allocated: asyncio.Future[Owned]) -> None:
        """Free memory that nobody waits for any more; a thread that failed has freed its own."""
        if not allocated.cancelled() and allocated.exception() is None:
            self.memory.free([allocated.result()])

    async def reserve_copy(self, commit: Commit) -> Place:
        """Empty a place for a copy of another node's part, and return it. Raises `NoMemoryError`.

        Each step that may be protected has a place, so the older copy is kept until the newer one is here.
        """
        sizes, copies = ArenaSizes.at_least(commit.length, 0), self._copies.get(commit.rank, [])
        if not copies or not copies[-1].arena.sizes.has_room_for(sizes):
            size = HEADER_BYTES + self._places_of_copies * sizes.generation
            copied = f"{self._places_of_copies} copies of the state of rank {commit.rank}"
            demand = f"to keep {copied} takes {size_in_words(size)}"
            self.memory.claim(sizes, size, demand)
            owned = await self._allocate(sizes, size, demand)
            copies = self._copies.setdefault(commit.rank, [])
            copies.append(owned)
        places = copies[-1].arena.generations[: self._places_of_copies]
        held = [(place, place.read()) for place in places]
        free = [(place, old) for place, old in held if old is None or not self.is_protected(old)]
        if not free:
            raise NoMemoryError(f"all {self._places_of_copies} copies of the state of rank {commit.rank} are protected")
        place, _ = min(free, key=lambda entry: (0, 0) if entry[1] is None else (entry[1].round, entry[1].step))
        place.invalidate()
        return place

    def drop_copies(self, keep: Collection[int]) -> None:
        """Drop the arenas of copies that have no protected step, except the last one of each rank in `keep`."""
        self._drop_unprotected(self._copies, [copies[-1] for rank, copies in self._copies.items() if rank in keep])

    def _drop_unprotected(self, arenas: dict[int, list[Owned]], kept: Collection[Owned] = ()) -> None:
        """Drop the arenas that have no protected step, except those in `kept`."""
        for rank, of_rank in list(arenas.items()):
            dropped = [owned for owned in of_rank if owned not in kept and not self._has_protected(owned.arena)]
            self.memory.free(dropped)
            arenas[rank] = [owned for owned in of_rank if owned not in dropped]
            if not arenas[rank]:
                del arenas[rank]

    def _drop_all(self, *kinds: dict[int, list[Owned]]) -> None:
        for arenas in kinds:
            self.memory.free([owned for of_rank in arenas.values() for owned in of_rank])
            arenas.clear()

    def receive(self, rank: int, owned: Owned) -> None:
        """Own the memory of a received part of this rank, until `drop_received`."""
        self._received.setdefault(rank, []).append(owned)

    def drop_received(self) -> None:
        """Drop the received parts, except for those of protected steps."""
        self._drop_unprotected(self._received)

    def held(self) -> Iterator[Held]:
        """Yield the whole parts in all places."""
        for owned in self._all():
            for kind, places in ((Kind.BIG, owned.arena.generations), (Kind.SMALL, owned.arena.smalls)):
                for place in places:
                    commit = place.read()
                    if commit is not None:
                        yield Held(owned.file, place, commit, kind)

    def find(self, rank: int, round_number: int, step: int, kind: Kind) -> Held | None:
        """Return this part with its place; None if no place has it.

        A small state may also lie in a generation. Of several, one from the end of the step is preferred to a pending
        one.
        """
        wanted = rank, round_number, step
        candidates = [
            held
            for held in self.held()
            if (held.commit.rank, held.commit.round, held.commit.step) == wanted
            and (held.kind is kind or (kind is Kind.SMALL and held.small))
        ]
        return max(candidates, key=lambda held: (not held.commit.pending, held.commit.serial), default=None)

    def enter(self, run: str) -> None:
        """Drop the parts of the present run, and keep those of another run from now on."""
        self.drop()
        self.run, self._protected = run, {run: self._protected.get(run, ())}

    def protect(self, run: str, steps: Collection[tuple[int, int]]) -> None:
        """Protect these rounds and steps, so that no worker overwrites them, once this run is entered."""
        self._protected = {self.run: self._protected.get(self.run, ()), run: steps}
        if run == self.run:
            for owned in self._all():
                owned.arena.protect(steps)
            self.drop_superseded()
            self.drop_received()

    def is_protected(self, commit: Commit) -> bool:
        """Whether the generation of a commit must not be overwritten."""
        return (commit.round, commit.step) in self._protected.get(self.run, ())

    def drop_superseded(self) -> None:
        """Drop arenas that were replaced by larger ones, once the larger ones have a whole generation.

        Arenas with a protected step are kept, because a newer step may not be whole on other nodes.
        """
        kept: list[Owned] = []
        for *older, last in self._owned.values():
            has_generation = any(place.read() is not None for place in last.arena.generations)
            kept += [last] if has_generation else [*older, last]
        self._drop_unprotected(self._owned, kept)

    def _has_protected(self, arena: Arena) -> bool:
        commits = [place.read() for place in (*arena.generations, *arena.smalls)]
        return any(commit is not None and self.is_protected(commit) for commit in commits)

    def drop(self) -> None:
        """Drop all arenas."""
        self._drop_all(self._owned, self._copies, self._received)

    def _all(self) -> list[Owned]:
        of_ranks = (*self._owned.values(), *self._copies.values(), *self._received.values())
        return [owned for of_rank in of_ranks for owned in of_rank]


def read_only(file: int) -> int:
    """Return a read-only descriptor of the same file. Raises `OSError`."""
    return os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_CLOEXEC)


def named_parts(arenas: Arenas, digests: Digests, *, with_small: bool) -> Iterator[KeptParts]:
    """Yield the parts to report, each of one rank; unprotected small ones only `with_small`.

    A part that several ranks have alike is reported once it has the digest by which the coordinator compares them.
    """
    for held in arenas.held():
        is_big, is_protected = held.kind is Kind.BIG, arenas.is_protected(held.commit)
        digest = digests.of_tensors(held.place, held.commit) if is_big else None
        is_ready = digest is not None or not is_comparable(held.commit)
        is_wanted = is_ready if is_big else (with_small or is_protected)
        if is_wanted:
            part = _part_of(held, digest, protected=is_protected)
            if part is not None:
                yield part


def _part_of(held: Held, digest: int | None, *, protected: bool) -> KeptParts | None:
    """Return a part for the protocol; None if a worker has written numbers out of bounds."""
    commit, big = held.commit, held.kind is Kind.BIG
    if commit.round > COUNTER_MAX or max(commit.world_size, commit.shards) > RANKS_MAX:
        return None
    return KeptParts(
        round=commit.round,
        step=commit.step,
        world_size=commit.world_size,
        shards=commit.shards,
        first_rank=commit.rank,
        ranks=1,
        first_shard=commit.shard,
        big=big,
        small=held.small and not commit.pending,
        pending=held.small and commit.pending,
        protected=protected,
        digest=digest,
    )
