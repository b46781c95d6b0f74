"""The daemon's store: a `Database` in a state directory, used in a thread so that the event loop waits for no disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self, TypeVar

from coordinatord.core.records import Record
from coordinatord.store.database import Database
from coordinatord.store.directory import StateDirectory
from coordinatord.store.interface import Entry, Happening

Result = TypeVar("Result")


class SqliteStore:
    """A state directory that this daemon has for itself, and the history in it."""

    def __init__(self, directory: StateDirectory, database: Database) -> None:
        self._directory = directory
        self._database = database
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        """One, so that whatever is asked for happens in order."""

    @classmethod
    def open(cls, path: Path) -> Self:
        """Take a state directory, made if missing, and prove it sound and writable. Raises `StoreError`."""
        directory = StateDirectory.claim(path)
        try:
            return cls(directory, Database.open(directory.database))
        except BaseException:
            directory.release()
            raise

    async def load(self) -> Sequence[Entry]:
        """Return the history of the last run of each job, oldest first. Raises `StoreError`."""
        return await self._in_thread(self._database.load)

    async def append(self, records: Sequence[Record], at: float) -> None:
        """Make records durable, in order and all or none, as made at the time `at`. Raises `StoreError`."""

        def work() -> None:
            self._directory.check()
            self._database.append(records, at)

        await self._in_thread(work)

    async def happenings(self, job: str | None, after: int, most: int) -> Sequence[Happening]:
        """Return the newest `most` records with a greater number than `after`, oldest first. Raises `StoreError`."""
        return await self._in_thread(lambda: self._database.happenings(job, after, most))

    async def close(self) -> None:
        """Let go of the directory when all that was asked for is done."""
        try:
            await self._in_thread(self._database.close)
        finally:
            self._thread.shutdown()
            self._directory.release()

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
