"""Wakes readers when there is something new to show.

It is no queue: a reader remembers the last version that it has read, and reads the present state if there is a newer
version. So a slow reader skips versions, and costs no memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from coordinatord.store.interface import Entry


class ChangeSignal:
    """Counts how often something has become durable."""

    def __init__(self) -> None:
        self.version = 0
        """The number of changes."""
        self.closed = False
        """Whether the daemon is ending, so that no change will follow."""
        self._waiting: set[asyncio.Future[None]] = set()

    def on_records(self, entries: Sequence[Entry]) -> None:
        """Count new durable records, as one of the driver's watchers."""
        del entries
        self.version += 1
        self._wake()

    def close(self) -> None:
        """Wake all readers: the daemon ends."""
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():  # its reader may have been cancelled
                future.set_result(None)

    async def wait_after(self, version: int) -> int:
        """Wait for a version after `version`, or for the end of the daemon; return the present version."""
        while self.version <= version and not self.closed:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(future)
            try:
                await future
            finally:
                self._waiting.discard(future)
        return self.version
