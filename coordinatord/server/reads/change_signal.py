"""Wakes readers when there is something new to show.

It is a level, not a queue: a reader remembers the last version that it has seen, and reads the present state if there
is a later one. A slow reader skips what it missed, and costs no memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from coordinatord.store.interface import Entry


class ChangeSignal:
    """Counts how often something has become durable."""

    def __init__(self) -> None:
        self.version = 0
        self.closed = False
        """Whether no further change will come."""
        self._waiting: set[asyncio.Future[None]] = set()

    def on_records(self, entries: Sequence[Entry]) -> None:
        """Count new durable records, as one of the driver's watchers."""
        del entries
        self.version += 1
        self._wake()

    def close(self) -> None:
        """Wake all waiting readers: the daemon ends."""
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():  # its reader may have been cancelled
                future.set_result(None)

    async def beyond(self, version: int) -> int:
        """Wait until something has become durable after `version`, or the daemon ends; return the present version."""
        while self.version <= version and not self.closed:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(future)
            try:
                await future
            finally:
                self._waiting.discard(future)
        return self.version
