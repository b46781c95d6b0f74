"""Stores in memory that are slow, or fail, as a test wants it."""

import asyncio
from collections.abc import Sequence

from coordinatord.core.rounds.values.records import Record, RoundFormed
from coordinatord.store.database_store import MemoryStore
from coordinatord.store.interface import Entry, StoreError


class SlowStore(MemoryStore):
    """Makes records durable when it is allowed to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: asyncio.Queue[Sequence[Record]] = asyncio.Queue()
        self.allowed = asyncio.Semaphore(0)
        self.broken = False

    async def append(self, entries: Sequence[Entry]) -> None:
        """Keep records, late."""
        self.asked.put_nowait([entry.record for entry in entries])
        await self.allowed.acquire()
        if self.broken:
            raise StoreError("the disk is full")
        await super().append(entries)


class RoundsStore(MemoryStore):
    """Is asked for the rounds of a run, and has no room for a second round while it is full."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        """How often it was asked."""
        self.was_asked, self.may_answer = asyncio.Event(), asyncio.Event()
        self.may_answer.set()
        self.is_unreadable = self.is_full = False

    async def append(self, entries: Sequence[Entry]) -> None:
        """Keep records. Raises `StoreError`."""
        if self.is_full and any(isinstance(entry.record, RoundFormed) and entry.record.round == 2 for entry in entries):
            raise StoreError("the disk is full")
        await super().append(entries)

    async def read_rounds(self, job: str, run: str) -> Sequence[Record]:
        """Return rounds. Raises `StoreError`."""
        self.asked += 1
        self.was_asked.set()
        await self.may_answer.wait()
        if self.is_unreadable:
            raise StoreError("etcd does not answer")
        return await super().read_rounds(job, run)
