"""The memory for a part of kept state while this node receives it from another node, or reads it from a disk.

One thread allocates the memory and fills it, while the event loop may cancel the transfer at any moment. The memory has
one owner at a time, so that it is released only once: the landing from `room` on, then the caller of `take`. The thread
may still fill a place that was released: it holds the mapping, and until that is gone the kernel frees no memory.
"""

from __future__ import annotations

from threading import Lock

from msgspec import Struct

from nodeclient.keeping.parts.arena_memory import ArenaMemory, NoMemoryError, Owned, size_in_words
from nodeclient.keeping.parts.part_fetch import FetchError
from nodeclient.keeping.parts.part_messages import Kind
from workerlib.contract.arena import ArenaError, ArenaSizes, Commit, Place

_UNWANTED = "it is not wanted any more"


class Landed(Struct, frozen=True):
    """A part in memory of this node, received or still being received."""

    commit: Commit
    owned: Owned
    is_generation: bool
    """Whether it is a generation, and not only a small state."""


class Landing:
    """Receives one part into this node's memory."""

    def __init__(self, memory: ArenaMemory, kind: Kind) -> None:
        """Begin without a part; `room` will allocate its place in `memory`."""
        self._memory = memory
        self._kind = kind
        self._lock = Lock()
        self._landed: Landed | None = None
        self._is_over = False
        """Whether the caller has taken the part, or has cancelled the transfer."""

    def room(self, commit: Commit) -> Place:
        """Return the place for the part that a commit describes. The thread that fills the place calls this once.

        Raises `NoMemoryError`, `OSError`, and `FetchError` if the transfer was cancelled.
        """
        if self._is_over:  # read without the lock to save the allocation; `_own` decides
            raise FetchError(_UNWANTED)
        # A holder that is asked for a small state may send a generation with it: only those have `has_small`.
        is_generation = self._kind is Kind.BIG or commit.has_small
        generation, small = (commit.length, 0) if is_generation else (0, commit.length)
        try:
            sizes = ArenaSizes.at_least(generation, small)
        except ArenaError as error:
            raise NoMemoryError(str(error)) from None
        size = sizes.one_of_each
        what_for = f"the state of rank {commit.rank} at step {commit.step} takes {size_in_words(size)}"
        self._memory.claim(sizes, size, what_for)
        owned = self._memory.allocate(sizes, size)
        self._own(Landed(commit, owned, is_generation))
        owned.arena.touch(generations=1)  # at once, since the data would cause a fault at each page
        return (owned.arena.generations if is_generation else owned.arena.smalls)[0]

    def _own(self, landed: Landed) -> None:
        """Own new memory. Raises `FetchError` if the transfer was cancelled meanwhile.

        The lock is not held while memory is allocated: that takes seconds, and the event loop may cancel meanwhile.
        """
        with self._lock:
            if not self._is_over:
                self._landed = landed
                return
        self._memory.free([landed.owned])
        raise FetchError(_UNWANTED)

    def take(self) -> Landed:
        """Return the part, which must be whole. From then on the caller owns its memory."""
        landed = self._end()
        assert landed is not None  # noqa: S101 - a part that came has memory
        return landed

    def close(self) -> None:
        """Give the part up, and its memory if that was not taken."""
        if (landed := self._end()) is not None:
            self._memory.free([landed.owned])

    def _end(self) -> Landed | None:
        """Own the memory no longer; return it."""
        with self._lock:
            landed, self._landed, self._is_over = self._landed, None, True
        return landed
