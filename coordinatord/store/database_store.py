"""The base of the stores with a database: one thread writes, another one reads, and the event loop never blocks.

A subclass makes records durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from coordinatord.core.rounds.values.records import Record
from coordinatord.store.database import Database
from coordinatord.store.interface import EventPage

Result = TypeVar("Result")


class DatabaseStore:
    """Reads a database that a subclass writes."""

    def __init__(self, path: Path, identity: str) -> None:
        """Open the file for reading. Raises `StoreError`."""
        self._reader = Database.open_reader(path)
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="store")
        """The thread that writes, in the order of calls."""
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="store-reader")
        self.identity = identity
        """A token that no other store has."""

    async def read_events(
        self, job: str | None, after: int | None, most: int, *, kinds: Collection[str] = (), since: float = 0.0
    ) -> EventPage:
        """Return a page of events: see `Store`. Raises `StoreError`."""
        return await self._in_reader_thread(partial(self._reader.read_events, job, after, most, kinds, since))

    async def read_rounds(self, job: str, run: str) -> Sequence[Record]:
        """Return the records about the rounds of a run: see `Store`. Raises `StoreError`."""
        return await self._in_reader_thread(partial(self._reader.rounds, job, run))

    async def read_round(self, job: str, run: str, number: int) -> Sequence[Record]:
        """Return a round's records: see `Store`. Raises `StoreError`."""
        return await self._in_reader_thread(partial(self._reader.read_round, job, run, number))

    # For the subclass

    async def _in_writer_thread(self, work: Callable[[], Result]) -> Result:
        """Call `work` in the thread that writes, after all earlier calls."""
        return await asyncio.get_running_loop().run_in_executor(self._writing, work)

    async def _in_reader_thread(self, read: Callable[[], Result]) -> Result:
        """Call `read` in the thread that reads: a read must not delay a commit."""
        return await asyncio.get_running_loop().run_in_executor(self._reading, read)

    def _start_check(self) -> Future[None]:
        """Start to check every page of the file, in the thread that reads."""
        return self._reading.submit(self._reader.check)

    async def _shut_down(self, close: Callable[[], None]) -> None:
        """End both threads after all calls; the last one is `close`."""
        try:
            self._reading.shutdown(cancel_futures=True)
            self._reader.close()
            await self._in_writer_thread(close)
        finally:
            self._writing.shutdown()
