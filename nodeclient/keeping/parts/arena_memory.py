"""The memory for all arenas of a node: allocated within a limit, and within what the host can spare."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from threading import Lock

from coordinatord.protocol.errors import OperationalError
from nodeclient.host import syscalls
from nodeclient.host.capacity import address_space_left
from workerlib.contract.arena import MEMORY_NAME, Arena, ArenaSizes

_USABLE_SHARE = 0.9
"""The share of the host's free memory that kept state may take. If a control group runs out of memory, the kernel does
not refuse an allocation, but kills one of the group's processes."""

_CHUNK_BYTES = 16 << 20
"""The bytes that are allocated between two checks of the free memory, which other nodes on this host may take too."""

_FOR_THREADS = 256_000_000
"""The address space that kept state leaves to nodeclient, in which each new thread needs a stack."""


class NoMemoryError(OperationalError):
    """There is too little memory for an arena; the text says why, and what to do."""


@dataclass(slots=True, eq=False)
class Owned:
    """An arena of this node. Its owner closes the file, and gives the memory back."""

    file: int
    arena: Arena
    size: int
    """The bytes that count towards the limit."""


class ArenaMemory:
    """The memory for arenas. All methods may be called in any thread.

    Memory is taken in two steps: `claim` compares it with the limit and counts it, and `allocate` allocates it, which
    takes a second for each gigabyte. Of each arena the first `backed_bytes` have memory. Behind them lie the places
    that a copy or a received part does not use: a hole, which is mapped too, and never written.
    """

    def __init__(self, limit_bytes: int, available: Callable[[], int]) -> None:
        """Allow at most `limit_bytes`. `available` returns how many bytes the host has free, or raises `OSError`."""
        self._limit_bytes = limit_bytes
        self._available = available
        self._lock = Lock()
        self._coming_bytes = 0
        """The bytes that are being allocated, which `available` may still count as free."""
        self._unmapped_bytes = 0
        """The sizes of the arenas that are being allocated, which are mapped only afterwards."""
        self._reserve_bytes = 0.0
        """The bytes that must remain free on the host, as of the last claim."""
        self._is_closed = False
        self.used_bytes = 0
        """The claimed bytes, which count towards the limit."""

    def claim(self, sizes: ArenaSizes, backed_bytes: int, demand: str) -> None:
        """Claim memory for `allocate`. Raises `NoMemoryError` with `demand`, its purpose, if it is too much."""
        with self._lock:
            if backed_bytes > self._limit_bytes - self.used_bytes:
                used = f", of which {size_in_words(self.used_bytes)} are used" if self.used_bytes else ""
                raise NoMemoryError(f"{demand}, and --keep-memory is {size_in_words(self._limit_bytes)}{used}")
            try:
                available, addresses = self._available(), address_space_left()
            except OSError as error:  # a lack of descriptors, say
                raise NoMemoryError(
                    f"{demand}, and this host does not tell how much it has: {error.strerror}"
                ) from error
            usable = max(0.0, available * _USABLE_SHARE - self._coming_bytes)
            if backed_bytes > usable:
                raise NoMemoryError(f"{demand}, and this host has {size_in_words(int(usable))} to spare")
            if addresses is not None and sizes.total > addresses - _FOR_THREADS - self._unmapped_bytes:
                left = size_in_words(max(0, addresses - _FOR_THREADS - self._unmapped_bytes))
                mapped = f"{size_in_words(sizes.total)} of address space"
                raise NoMemoryError(f"{demand} and {mapped}, of which ulimit -v leaves {left}: raise it")
            self._reserve_bytes = available * (1 - _USABLE_SHARE)
            self.used_bytes += backed_bytes
            self._coming_bytes += backed_bytes
            self._unmapped_bytes += sizes.total

    def allocate(self, sizes: ArenaSizes, backed_bytes: int) -> Owned:
        """Return a new arena with the memory that the caller has claimed. Blocks.

        Raises `OSError`; then the memory is not claimed any more.
        """
        try:
            return self._new_arena(sizes, backed_bytes)
        except BaseException:
            self._release(backed_bytes)
            raise
        finally:
            with self._lock:
                self._coming_bytes -= backed_bytes
                self._unmapped_bytes -= sizes.total

    def _new_arena(self, sizes: ArenaSizes, backed_bytes: int) -> Owned:
        file = syscalls.memory_file(MEMORY_NAME)
        try:
            os.ftruncate(file, sizes.total)
            self._fill(file, backed_bytes)
            syscalls.seal_size(file)
            return Owned(file, Arena.create(file, sizes), backed_bytes)
        except BaseException:
            os.close(file)
            raise

    def _fill(self, file: int, size: int) -> None:
        for begin in range(0, size, _CHUNK_BYTES):
            length = min(_CHUNK_BYTES, size - begin)
            if self._is_closed or self._available() - length < self._reserve_bytes:
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
            os.posix_fallocate(file, begin, length)

    def free(self, arenas: Collection[Owned]) -> None:
        """Release arenas. The kernel frees their memory when no process has it mapped any more."""
        for owned in arenas:
            os.close(owned.file)
            self._release(owned.size)

    def close(self) -> None:
        """Make all allocations fail, also those in progress, for which the process would wait before it exits."""
        self._is_closed = True

    def _release(self, size: int) -> None:
        with self._lock:
            self.used_bytes -= size


def size_in_words(number: int) -> str:
    """Return a number of bytes as people write it."""
    return f"{number / 1e9:.3g} GB" if number >= 1e9 else f"{number / 1e6:.3g} MB"  # noqa: PLR2004 - a gigabyte
