"""The memory of a node for kept state. It belongs to this process, so it outlives the workers that write into it.

An *arena* is shared memory for the state of one rank (`workerlib.contract.arena` has its layout). It has *places*:
three *generations* for the big state of a step, which is weights and optimizer, and six for its small state. A place
that was written to the end is *whole* and holds a *part*, the state of that rank as of one step. Its control words, the
`Commit`, name the step. A step is *protected* if the coordinator wants no node to overwrite what it has of it.

This node has three kinds of arenas:

* Its own, one for each local rank. A worker of a later round gets it again, with its contents. If it needs a larger
  one, the older one stays until the new one has a whole generation.
* Copies of what only one other node has, so that they survive its loss.
* Parts that were received for a round to resume from. They stay as long as their step is protected: the node that sent
  them may be gone, and the workers save nothing before their first step.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from threading import Lock

from msgspec import Struct

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.fields import COUNTER_MAX, RANKS_MAX
from coordinatord.protocol.kept_state import KeptParts
from nodeclient.host.memory import address_space_left
from nodeclient.keeping.parts.digests import Digests, is_comparable
from nodeclient.keeping.parts.part_messages import Kind
from nodeclient.workers import syscalls
from workerlib.contract.arena import (
    HEADER_BYTES,
    MEMORY_NAME,
    Arena,
    ArenaSizes,
    Commit,
    Place,
    refusal_text,
)

_USABLE_SHARE = 0.9
"""The share of the host's free memory that kept state may take. If a control group runs out of memory, the kernel does
not refuse an allocation, but kills one of the group's processes."""

_CHUNK_BYTES = 16 << 20
"""The bytes that are allocated between two checks of the free memory, which other nodes on this host may take too."""

_FOR_THREADS = 256_000_000
"""The address space that kept state leaves to nodeclient, in which each new thread needs a stack."""

COPIES = 2
"""How many steps of another node's rank are copied: the protected one, and the candidate for its place."""

COPIES_WITH_DISK = 3
"""The same where nodes write to a disk, since a step that is being written is protected too."""


class NoMemoryError(OperationalError):
    """There is too little memory for an arena; the text says why, and what to do."""


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


@dataclass(slots=True, eq=False)
class Owned:
    """An arena of this node. Its owner closes the file, and gives the memory back."""

    file: int
    arena: Arena
    size: int
    """The bytes that count towards the limit."""


class Arenas:
    """The arenas of one node, within a limit of memory.

    Memory is taken in two steps: `claim` compares it with the limit and counts it, and `allocate_claimed` allocates it,
    which takes a second for each gigabyte. These two and `close` may be called in any thread, all else in that of the
    event loop.
    """

    def __init__(self, limit_bytes: int, available: Callable[[], int], copies: int) -> None:
        """Begin with none.

        `limit_bytes` is the most memory for all arenas. `available` returns how many bytes the host has free. `copies`
        is how many steps of another node's rank have a place here.
        """
        self._places_of_copies = copies
        self._limit_bytes = limit_bytes
        self._available = available
        self._owned: dict[int, list[Owned]] = {}
        """The arenas of each local rank; the last one is in use."""
        self._reserving: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Held for each local rank that an arena is being reserved for."""
        self._copies: dict[int, list[Owned]] = {}
        """Copies of what other nodes keep, by rank; the last one is in use."""
        self._received: dict[int, list[Owned]] = {}
        """Parts that were received for a round to resume from, by rank."""
        self.run = ""
        """The run whose parts are held."""
        self._protected: dict[str, Collection[tuple[int, int]]] = {}
        """The protected rounds and steps, of this run and of one that may be entered next."""
        self._lock = Lock()
        self._coming_bytes = 0
        """The bytes that are being allocated, which `available` may still count as free."""
        self._must_stay_free = 0.0
        """The bytes that must remain free on the host, as of the last claim."""
        self.used_bytes = 0
        """The bytes that count towards the limit, with those that are being allocated or received."""

    async def reserve(self, local_rank: int, sizes: ArenaSizes) -> int:
        """Return the file of an arena of at least these sizes for a local rank. Raises `NoMemoryError`.

        Copies and received parts are dropped if there is no memory otherwise: a worker comes before other nodes.
        """
        async with self._reserving[local_rank]:  # a worker of an earlier round may still be getting the same memory
            fitting = [owned for owned in self._owned.get(local_rank, ()) if owned.arena.sizes.holds(sizes)]
            chosen = fitting[-1] if fitting else await self._allocate_own(sizes)
            others = [owned for owned in self._owned.get(local_rank, ()) if owned is not chosen]
            self._owned[local_rank] = [*others, chosen]
            return chosen.file

    async def _allocate_own(self, sizes: ArenaSizes) -> Owned:
        demand = f"to keep three generations of a worker's state takes {size_in_words(sizes.total)}"
        try:
            self.claim(sizes.total, demand)
        except NoMemoryError:
            if not (self._copies or self._received):
                raise
            self._drop_all_of_others()
            self.claim(sizes.total, demand)
        return await self._allocate(sizes, sizes.total, demand)

    def file_of(self, local_rank: int) -> int | None:
        """Return the file of the arena of a local rank; None if it has none."""
        owned = self._owned.get(local_rank)
        return owned[-1].file if owned else None

    async def _allocate(self, sizes: ArenaSizes, size: int, demand: str) -> Owned:
        """Allocate a new arena without blocking the event loop. Raises `NoMemoryError` with `demand`, its purpose."""
        try:
            # The memory is allocated now, since a worker that writes must not meet a lack of it. To zero the pages
            # takes a second for each gigabyte, so a thread does it.
            allocating = asyncio.ensure_future(asyncio.to_thread(self.allocate_claimed, sizes, size))
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
            self.close([allocated.result()])

    async def reserve_copy(self, commit: Commit) -> Place:
        """Empty a place for a copy of another node's part, and return it. Raises `NoMemoryError`.

        Each step that may be protected has a place, so the older copy is kept until the newer one is here.
        """
        sizes, copies = ArenaSizes.at_least(commit.length, 0), self._copies.get(commit.rank, [])
        if not copies or not copies[-1].arena.sizes.holds(sizes):
            size = HEADER_BYTES + self._places_of_copies * sizes.generation
            copied = f"{self._places_of_copies} copies of the state of rank {commit.rank}"
            demand = f"to keep {copied} takes {size_in_words(size)}"
            self.claim(size, demand)
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
            self.close(dropped)
            arenas[rank] = [owned for owned in of_rank if owned not in dropped]
            if not arenas[rank]:
                del arenas[rank]

    def _drop_all_of_others(self) -> None:
        for of_others in (self._copies, self._received):
            self.close([owned for of_rank in of_others.values() for owned in of_rank])
            of_others.clear()

    def receive(self, rank: int, owned: Owned) -> None:
        """Own the memory of a received part of this rank, until `drop_received`."""
        self._received.setdefault(rank, []).append(owned)

    def drop_received(self) -> None:
        """Drop the received parts, except for those of protected steps."""
        self._drop_unprotected(self._received)

    def claim(self, size: int, demand: str) -> None:
        """Claim memory for `allocate_claimed`. Raises `NoMemoryError` with `demand`, its purpose, if it is too much."""
        with self._lock:
            if size > self._limit_bytes - self.used_bytes:
                used = f", of which {size_in_words(self.used_bytes)} are used" if self.used_bytes else ""
                raise NoMemoryError(f"{demand}, and --keep-memory is {size_in_words(self._limit_bytes)}{used}")
            available = self._available()
            usable = max(0.0, available * _USABLE_SHARE - self._coming_bytes)
            if size > usable:
                raise NoMemoryError(f"{demand}, and this host has {size_in_words(int(usable))} to spare")
            addresses = address_space_left()
            if addresses is not None and size > addresses - _FOR_THREADS - self._coming_bytes:
                left = size_in_words(max(0, addresses - _FOR_THREADS - self._coming_bytes))
                raise NoMemoryError(f"{demand}, and ulimit -v leaves {left} for it: raise it")
            self._must_stay_free = available * (1 - _USABLE_SHARE)
            self.used_bytes += size
            self._coming_bytes += size

    def allocate_claimed(self, sizes: ArenaSizes, size: int) -> Owned:
        """Return a new arena with memory for its first `size` bytes, which the caller has claimed. Blocks.

        Raises `OSError`; then the bytes are not claimed any more.
        """
        try:
            file = allocate(sizes, size, lambda more: self._available() - more >= self._must_stay_free)
            try:
                return Owned(file, Arena.attach(file, writable=True), size)  # it takes another descriptor
            except BaseException:
                os.close(file)
                raise
        except BaseException:
            self.give_back(size)
            raise
        finally:
            with self._lock:
                self._coming_bytes -= size

    def give_back(self, size: int) -> None:
        """Stop counting memory that was freed."""
        with self._lock:
            self.used_bytes -= size

    def close(self, arenas: Collection[Owned]) -> None:
        """Give up arenas. The kernel frees their memory when no process has it mapped any more."""
        for owned in arenas:
            os.close(owned.file)
            self.give_back(owned.size)

    def held(self) -> Iterator[Held]:
        """Return the whole parts in all places."""
        return self._held_in(self._all())

    @staticmethod
    def _held_in(arenas: Iterable[Owned]) -> Iterator[Held]:
        for owned in arenas:
            for kind, places in ((Kind.BIG, owned.arena.generations), (Kind.SMALL, owned.arena.smalls)):
                for place in places:
                    commit = place.read()
                    if commit is not None:
                        yield Held(owned.file, place, commit, kind)

    def find(self, rank: int, round_number: int, step: int, kind: Kind) -> Held | None:
        """Return this part with its place; None if no place has it.

        A generation may hold the small state too. One from the end of the step is preferred to one from within it.
        """
        wanted, own = (rank, round_number, step), (owned for of_rank in self._owned.values() for owned in of_rank)
        candidates = [
            held
            for held in self._held_in([*own, *self._copies.get(rank, ()), *self._received.get(rank, ())])
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
        for local_rank, owned in self._owned.items():
            *older, last = owned
            if any(place.read() is not None for place in last.arena.generations):
                superseded = [entry for entry in older if not self._has_protected(entry.arena)]
                self._owned[local_rank] = [entry for entry in owned if entry not in superseded]
                self.close(superseded)

    def _has_protected(self, arena: Arena) -> bool:
        commits = [place.read() for place in (*arena.generations, *arena.smalls)]
        return any(commit is not None and self.is_protected(commit) for commit in commits)

    def drop(self) -> None:
        """Drop all arenas."""
        self.close(self._all())
        self._owned.clear()
        self._copies.clear()
        self._received.clear()

    def _all(self) -> list[Owned]:
        of_ranks = (*self._owned.values(), *self._copies.values(), *self._received.values())
        return [owned for of_rank in of_ranks for owned in of_rank]


def allocate(sizes: ArenaSizes, size: int, has_room: Callable[[int], bool]) -> int:
    """Return the file of a new arena, the first `size` bytes of which have memory. Raises `OSError`.

    `has_room` is called with the size of each chunk before it is allocated; it returns whether the host can spare that.
    """
    file = syscalls.memory_file(MEMORY_NAME)
    try:
        os.ftruncate(file, sizes.total)
        _fill(file, size, has_room)
        syscalls.seal_size(file)
        Arena.create(file, sizes)
    except BaseException:
        os.close(file)
        raise
    return file


def _fill(file: int, size: int, has_room: Callable[[int], bool]) -> None:
    for begin in range(0, size, _CHUNK_BYTES):
        length = min(_CHUNK_BYTES, size - begin)
        if not has_room(length):
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        os.posix_fallocate(file, begin, length)


def read_only(file: int) -> int:
    """Return a read-only descriptor of the same file. Raises `OSError`."""
    return os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_CLOEXEC)


def size_in_words(number: int) -> str:
    """Return a number of bytes as people write it."""
    return f"{number / 1e9:.3g} GB" if number >= 1e9 else f"{number / 1e6:.3g} MB"  # noqa: PLR2004 - a gigabyte


def named_parts(arenas: Arenas, digests: Digests, *, with_small: bool) -> Iterator[KeptParts]:
    """Yield the parts to report, each of one rank; unprotected small ones only `with_small`.

    A part that several ranks have alike is reported once it has the digest by which the coordinator compares them.
    """
    for held in arenas.held():
        is_big, is_protected = held.kind is Kind.BIG, arenas.is_protected(held.commit)
        digest = digests.of_tensors(held.place, held.commit) if is_big else None
        is_ready = digest is not None or not is_comparable(held.commit)
        if is_ready if is_big else with_small or is_protected:
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
