"""The store of `--ephemeral`: a restart of coordinatord forgets all jobs."""

from __future__ import annotations

from coordinatord.store.database import Database
from coordinatord.store.database_store import Store


class MemoryStore(Store):
    """An empty database in memory."""

    def __init__(self) -> None:
        database = Database.in_memory()
        super().__init__("memory", database, database)
