"""The default store: a `Database` in a state directory, used in a thread so that the event loop waits for no disk."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Self

from coordinatord.store.database import Database
from coordinatord.store.database_store import DatabaseStore
from coordinatord.store.directory import StateDirectory
from coordinatord.store.interface import Entry


class SqliteStore(DatabaseStore):
    """A state directory that this daemon has locked, and the history in it."""

    def __init__(self, directory: StateDirectory, database: Database) -> None:
        """Use a database in a directory. Raises `StoreError`."""
        super().__init__(directory.database, database.identity)
        self._directory = directory
        self._database = database
        self._ahead: tuple[Future[None], Future[None]] | None = None
        """The check and the prefetch for the next `load`, if they were started."""

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a state directory, made if missing, and prove it writable. Raises `StoreError`."""
        directory = StateDirectory.claim(path)
        try:
            return cls(directory, Database.open(directory.database))
        except BaseException:
            directory.release()
            raise

    def read_ahead(self) -> None:
        """Start the next `load` in threads; nothing may be appended before that `load`."""
        self._ahead = self._begin_to_load()

    async def load(self) -> Sequence[Entry]:
        """Check all pages, and return the history that the present state follows from. Raises `StoreError`."""
        under_way, self._ahead = self._ahead or self._begin_to_load(), None
        await asyncio.gather(*map(asyncio.wrap_future, under_way))
        return await self._in_thread(self._database.load)

    def _begin_to_load(self) -> tuple[Future[None], Future[None]]:
        # With a thousand jobs that are over, the check takes as long as the reading. Neither needs Python's lock, so
        # each can have a core of its own.
        return self._check_beside(), self._writing.submit(self._gather)

    def _gather(self) -> None:
        self._follow_clock()
        self._database.gather()

    def _follow_clock(self) -> None:
        """Shift the times of all records by as much as the host's clock was set during this boot."""
        if set_by_s := self._directory.clock_set_by_s:
            self._database.move(set_by_s)
        self._directory.record_clock()

    async def append(self, entries: Sequence[Entry]) -> None:
        """Make records durable, in order and all or none. Raises `StoreError`."""

        def work() -> None:
            self._directory.check()
            self._follow_clock()
            self._database.append(entries)

        await self._in_thread(work)

    async def close(self) -> None:
        """Release the directory when all calls are done."""
        try:
            await self._end(self._database.close)
        finally:
            self._directory.release()
