"""The daemon's store: a `Database` in a state directory, used in a thread so that the event loop waits for no disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

from coordinatord.core.values.records import Record
from coordinatord.store.database import Database
from coordinatord.store.directory import StateDirectory
from coordinatord.store.interface import Entry, EventPage

Result = TypeVar("Result")


class SqliteStore:
    """A state directory that this daemon has locked, and the history in it."""

    def __init__(self, directory: StateDirectory, database: Database, reader: Database) -> None:
        self._directory = directory
        self._database = database
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        """One thread, so that calls are carried out in order."""
        self._reader = reader
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="store-reader")
        self._ahead: tuple[Future[None], Future[None]] | None = None
        """The parts of the next `load` that are under way."""
        self.identity = database.identity
        """A token that no other store has."""

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a state directory, made if missing, and prove it writable. Raises `StoreError`."""
        directory = StateDirectory.claim(path)
        try:
            database = Database.open(directory.database)
            return cls(directory, database, Database.beside(directory.database))
        except BaseException:
            directory.release()
            raise

    def read_ahead(self) -> None:
        """Begin what the next `load` waits for, in threads; until that is called, nothing may be recorded."""
        self._ahead = self._begin_to_load()

    async def load(self) -> Sequence[Entry]:
        """Return what led to the present state, oldest first, once all is proved sound. Raises `StoreError`."""
        under_way, self._ahead = self._ahead or self._begin_to_load(), None
        await asyncio.gather(*map(asyncio.wrap_future, under_way))
        return await self._in_thread(self._database.load)

    def _begin_to_load(self) -> tuple[Future[None], Future[None]]:
        # The check takes as long as the reading when a thousand jobs are over. Neither needs Python's lock, so each can
        # have a core of its own.
        return self._reading.submit(self._reader.check), self._thread.submit(self._database.gather)

    async def append(self, entries: Sequence[Entry]) -> None:
        """Make records durable, in order and all or none. Raises `StoreError`."""

        def work() -> None:
            self._directory.check()
            self._database.append(entries)

        await self._in_thread(work)

    async def read_events(
        self, job: str | None, after: int | None, most: int, *, kinds: Collection[str] = (), since: float = 0.0
    ) -> EventPage:
        """Return the next `most` such records with a greater number than `after`; None: the newest.

        Raises `StoreError`.
        """
        return await self._beside(partial(self._reader.read_events, job, after, most, kinds, since))

    async def read_rounds(self, job: str, run: str) -> Sequence[Record]:
        """Return the records of a run that tell of its rounds, oldest first. Raises `StoreError`."""
        return await self._beside(partial(self._reader.rounds, job, run))

    async def read_round(self, job: str, run: str, number: int) -> Sequence[Record]:
        """Return the `RoundFormed` of a round, after the last `NodeJoined` of each node before it.

        Raises `StoreError`.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._reading, partial(self._reader.read_round, job, run, number))

    async def close(self) -> None:
        """Release the directory when all calls are done."""
        try:
            self._reading.shutdown(cancel_futures=True)
            self._reader.close()
            await self._in_thread(self._database.close)
        finally:
            self._thread.shutdown()
            self._directory.release()

    async def _beside(self, look: Callable[[], Result]) -> Result:
        """Read with a connection and a thread of its own: to look back must not delay what is being made durable."""
        return await asyncio.get_running_loop().run_in_executor(self._reading, look)

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
