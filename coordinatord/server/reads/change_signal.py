"""Wakes readers when there is something new to show.

It is no queue: a reader remembers the last version that it has read, and reads the present state if there is a newer
version. So a slow reader skips versions, and costs no memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from coordinatord.store.interface import Entry


class ChangeSignal:
    """Counts how often something has become durable."""

    def __init__(self) -> None:
        self.version = 0
        """The number of changes."""
        self.closed = False
        """Whether the daemon is ending, so that no change will follow."""
        self._changed = asyncio.Event()
        """Set at the next change, and then replaced by another one."""
        self._writes: set[asyncio.Timeout] = set()
        """The writes to readers that are in progress, which `close` ends."""

    def on_records(self, entries: Sequence[Entry]) -> None:
        """Count new durable records, as one of the driver's watchers."""
        del entries
        self.count()

    def count(self) -> None:
        """Count a change, and wake all readers."""
        self.version += 1
        self._wake()

    def close(self) -> None:
        """Wake all readers, and end the writes to those that do not read: the daemon ends."""
        self.closed = True
        self._wake()
        now = asyncio.get_running_loop().time()
        for write in self._writes:
            write.reschedule(now)

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def wait_after(self, version: float, within_s: float) -> None:
        """Wait for a version after `version`, or for the end of the daemon; return after `within_s` in any case."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self.version <= version and not self.closed:
                    await self._changed.wait()

    @asynccontextmanager
    async def until_closed(self) -> AsyncIterator[None]:
        """Limit a write to a reader within the context. Raises `TimeoutError` if the daemon ends first."""
        async with asyncio.timeout(0 if self.closed else None) as write:
            self._writes.add(write)
            try:
                yield
            finally:
                self._writes.discard(write)
