"""The memory for a part of kept state that is on its way to this node, from another node or from a disk.

One thread allocates the memory and fills it, while the event loop may give the part up. So memory has one owner at each
moment: the landing from `room` on, and the caller of `take` after that.
"""

from __future__ import annotations

import os
from enum import Enum, auto
from threading import Lock

from msgspec import Struct
from msgspec.structs import replace

from nodeclient.keeping.parts.arenas import Arenas, NoMemoryError, read_only, size_in_words
from nodeclient.keeping.parts.part_fetch import FetchError
from nodeclient.keeping.parts.part_messages import Kind
from workerlib.contract.arena import Arena, ArenaError, ArenaSizes, Commit, Place

_UNWANTED = "it is not wanted any more"


class _Empty(Enum):
    """Why a landing has no memory."""

    AWAITED = auto()
    """The size of the part is not known yet."""
    OVER = auto()
    """The part was taken, or given up."""


class Landed(Struct, frozen=True):
    """A part that is on this host by now, or that is on its way into this memory."""

    commit: Commit
    file: int
    """The descriptor, which is read-only once the part was taken. Its owner closes it, and gives the memory back."""
    size: int
    """The bytes that count towards the node's limit."""
    is_generation: bool
    """Whether it is a generation, and not only a small state."""


class Landing:
    """The way of one part into this node's memory."""

    def __init__(self, arenas: Arenas, kind: Kind) -> None:
        """Wait for a part, without memory. `arenas` counts what it will take."""
        self._arenas = arenas
        self._kind = kind
        self._lock = Lock()
        self._memory: Landed | _Empty = _Empty.AWAITED

    def room(self, commit: Commit) -> Place:
        """Return the place for the part with these control words. The thread that fills the place calls this, once.

        Raises `NoMemoryError`, `OSError`, and `FetchError` if the part was given up.
        """
        if self._memory is not _Empty.AWAITED:
            raise FetchError(_UNWANTED)
        is_generation = self._kind is Kind.BIG or commit.has_small
        generation, small = (commit.length, 0) if is_generation else (0, commit.length)
        try:
            sizes = ArenaSizes.at_least(generation, small)
        except ArenaError as error:
            raise NoMemoryError(str(error)) from None
        size = sizes.one_of_each
        self._arenas.claim(size, f"what rank {commit.rank} had at step {commit.step} takes {size_in_words(size)}")
        file = self._arenas.allocate_claimed(sizes, size)
        arena = self._own(Landed(commit, file, size, is_generation))
        arena.touch(1)
        return (arena.generations if is_generation else arena.smalls)[0]

    def _own(self, memory: Landed) -> Arena:
        """Own new memory, and return the arena in it. Raises `FetchError` if the part was given up meanwhile.

        The lock is not held while memory is allocated: that takes seconds, and the event loop may give the part up.
        """
        with self._lock:
            if self._memory is _Empty.AWAITED:
                self._memory = memory
                return Arena.attach(memory.file, writable=True)
        self._drop(memory)
        raise FetchError(_UNWANTED)

    def take(self) -> Landed:
        """Return the part, which must be whole. From then on the caller owns its memory. Raises `OSError`."""
        with self._lock:
            memory = self._memory
            assert isinstance(memory, Landed)  # noqa: S101 - a part that came has memory
            file = read_only(memory.file)
            os.close(memory.file)
            self._memory = _Empty.OVER
            return replace(memory, file=file)

    def close(self) -> None:
        """Give the part up, and its memory if that was not taken."""
        with self._lock:
            memory, self._memory = self._memory, _Empty.OVER
        if isinstance(memory, Landed):
            self._drop(memory)

    def _drop(self, memory: Landed) -> None:
        os.close(memory.file)
        self._arenas.give_back(memory.size)
