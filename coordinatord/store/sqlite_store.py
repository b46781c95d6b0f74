"""The default store: a `Database` in a state directory, which only one daemon may use at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Self

from coordinatord.store.database import Database
from coordinatord.store.database_store import Store
from coordinatord.store.directory import StateDirectory
from coordinatord.store.interface import Entry


class SqliteStore(Store):
    """A locked state directory, and the database in it."""

    def __init__(self, directory: StateDirectory, database: Database) -> None:
        """Use a database in a directory. Raises `StoreError`."""
        super().__init__(f"state directory {directory.path}", database, Database.open_reader(directory.database))
        self._directory = directory
        self._loading: tuple[Future[None], Future[None]] | None = None
        """The check and the prefetch for the next `load`; None if they were not started."""

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a state directory, made if missing, and prove it writable. Raises `StoreError`."""
        directory = StateDirectory.claim(path)
        try:
            return cls(directory, Database.open(directory.database))
        except BaseException:
            directory.close()
            raise

    def read_ahead(self) -> None:
        """Start the next `load` in threads, while the program imports modules; append nothing before that `load`."""
        self._loading = self._start_to_load()

    async def load(self) -> Sequence[Entry]:
        """Check the database, and return what `Store.load` returns. Raises `StoreError`."""
        loading, self._loading = self._loading or self._start_to_load(), None
        await asyncio.gather(*map(asyncio.wrap_future, loading))
        return await super().load()

    def _start_to_load(self) -> tuple[Future[None], Future[None]]:
        # With a thousand ended jobs, the check takes as long as the prefetch. Neither needs Python's lock, so each can
        # use a core of its own.
        return self._reading.submit(self._reader.check), self._writing.submit(self._prefetch)

    def _prefetch(self) -> None:
        self._follow_clock()
        self._database.prefetch()

    def _follow_clock(self) -> None:
        """Shift the times of all records by as much as the host's clock was set, so that ages stay right."""
        if set_by_s := self._directory.clock_set_by_s:
            self._database.shift_times(set_by_s)
        self._directory.record_clock()

    async def append(self, entries: Sequence[Entry]) -> None:
        """Make records durable: see `Store`. Raises `StoreError`."""

        def work() -> None:
            self._directory.check()
            self._follow_clock()
            self._database.append(entries)

        await self._in_writer_thread(work)

    async def close(self) -> None:
        """Release the directory after all calls."""
        try:
            await super().close()
        finally:
            self._directory.close()
