"""Places for stores: each opens one life of a store after another, and shows what a crash at any point leaves."""

import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

from coordinatord.store.directory import DATABASE
from coordinatord.store.interface import Entry, Store
from coordinatord.store.memory_store import MemoryStore
from coordinatord.store.sqlite_store import SqliteStore


class StorePlace(Protocol):
    """A place where a store keeps its records."""

    def life(self) -> AbstractAsyncContextManager[Store]:
        """Open the store, and close it when the context ends. Raises `StoreError`."""


class LastingPlace(StorePlace, Protocol):
    """A place that outlives the process."""

    async def crashes_while(self, entries: Sequence[Entry]) -> Sequence[StorePlace]:
        """Append in a life of its own; return the places that a crash at each point of it would have left.

        The last one is the place after the append.
        """


class MemoryPlace:
    """The memory of a process."""

    @asynccontextmanager
    async def life(self) -> AsyncIterator[Store]:
        """Make a store, which lasts as long as the context."""
        store = MemoryStore()
        yield store
        await store.close()


class DirectoryPlace:
    """A state directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @asynccontextmanager
    async def life(self) -> AsyncIterator[Store]:
        """Open the directory."""
        store = SqliteStore.open(self._folder)
        try:
            yield store
        finally:
            await store.close()

    async def crashes_while(self, entries: Sequence[Entry]) -> Sequence[StorePlace]:
        """Copy the directory before each statement of the append, and after the last one."""
        copies: list[DirectoryPlace] = []

        def copy(_: str = "") -> None:
            folder = self._folder.with_name(f"{self._folder.name}-{len(copies)}")
            folder.mkdir()
            for name in (DATABASE, f"{DATABASE}-wal"):  # the third file is memory that processes share
                if (self._folder / name).exists():
                    shutil.copy(self._folder / name, folder)
            copies.append(DirectoryPlace(folder))

        store = SqliteStore.open(self._folder)
        try:
            store._database._connection.set_trace_callback(copy)
            await store.append(entries)
            store._database._connection.set_trace_callback(None)
            copy()
        finally:
            await store.close()
        return copies
