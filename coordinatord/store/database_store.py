"""The base of all stores, in which the event loop never blocks, and the store of `--ephemeral`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from coordinatord.core.rounds.values.records import Record
from coordinatord.store.database import Database
from coordinatord.store.interface import Entry, EventPage

Result = TypeVar("Result")


class Store:
    """Stores the records of all runs. No read delays a commit, unless the database is in memory."""

    def __init__(self, place: str, database: Database, reader: Database) -> None:
        """Write a database, and read it by another connection, each in a thread of its own.

        A database in memory has only one connection, so one thread writes and reads it.
        """
        self.place = place
        """Where the records become durable, for people."""
        self._database = database
        self._reader = reader
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="store")
        """The thread that writes, in the order of calls."""
        self._reading = (
            self._writing if reader is database else ThreadPoolExecutor(1, thread_name_prefix="store-reader")
        )
        self.identity = database.identity
        """A token that no other store has: each store numbers its records itself."""

    async def load(self) -> Sequence[Entry]:
        """Return the records that lead to the present state, oldest first, at a start. Raises `StoreError`.

        These are all records of a live run, the records that determine the outcome of an ended run, and the records
        that begin and end each earlier run of a job.
        """
        return await self._in_writer_thread(self._database.load)

    async def append(self, entries: Sequence[Entry]) -> None:
        """Make records durable, all or none of them. Raises `StoreError`, and `LeadershipLostError`.

        They survive a crash after the return. The caller awaits each append before the next.
        """
        await self._in_writer_thread(partial(self._database.append, entries))

    async def read_events(
        self, job: str | None, after: int | None, most: int, *, kinds: Collection[str] = (), since: float = 0.0
    ) -> EventPage:
        """Return the next `most` records after number `after`, or the newest without one. Raises `StoreError`.

        Without `job`, records of all jobs and of no job match; without `kinds`, all kinds. Only records made at `since`
        or later match.
        """
        return await self._in_reader_thread(partial(self._reader.read_events, job, after, most, kinds, since))

    async def read_round(self, job: str, run: str, number: int) -> Sequence[Record]:
        """Return a round's records: the last `NodeJoined` of each node before it, then its `RoundFormed`.

        Return nothing if there is no such round, or it was deleted. Raises `StoreError`.
        """
        return await self._in_reader_thread(partial(self._reader.read_round, job, run, number))

    async def read_rounds(self, job: str, run: str) -> Sequence[Record]:
        """Return the records about the rounds of a run, oldest first. Raises `StoreError`.

        A `RoundRemembered` replaces each `RoundFormed`.
        """
        return await self._in_reader_thread(partial(self._reader.rounds, job, run))

    async def close(self) -> None:
        """Close the store after all calls; another process may use it then."""
        try:
            await self._in_reader_thread(self._reader.close)
            await self._in_writer_thread(self._database.close)
        finally:
            self._reading.shutdown()
            self._writing.shutdown()

    async def _in_writer_thread(self, work: Callable[[], Result]) -> Result:
        """Call `work` in the thread that writes, after all earlier calls."""
        return await asyncio.get_running_loop().run_in_executor(self._writing, work)

    async def _in_reader_thread(self, read: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._reading, read)


class MemoryStore(Store):
    """A store in memory: a restart of coordinatord forgets all jobs."""

    def __init__(self) -> None:
        database = Database.in_memory()
        super().__init__("memory", database, database)
