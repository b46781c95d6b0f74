"""The disk under coordinatord: the real database, which outlives the daemon, its faults, and crashes in a commit."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from enum import StrEnum

from coordinatord.core.rounds.values.records import Record
from coordinatord.store.database import Database
from coordinatord.store.interface import Entry


class CrashPoint(StrEnum):
    """Where in a commit the daemon is killed."""

    BEFORE = "before its records are durable"
    AFTER = "when its records are durable and no node has received any"
    AMONG = "when some nodes have received theirs"


class Fault(StrEnum):
    """The reason why a disk takes no writes."""

    READ_ONLY = "read-only"
    FULL = "full"
    HANGS = "hangs"


class Disk:
    """A database in memory, which outlives crashes of the daemon: each transaction is kept whole or not at all."""

    def __init__(self) -> None:
        self._database = Database.in_memory()
        self.fault: Fault | None = None

    def break_down(self, fault: Fault) -> None:
        """Let the disk fail. SQLite itself reports the errors, but for a disk that hangs.

        A full disk still takes what fits into the pages of the database.
        """
        self.repair()
        self.fault = fault
        connection = self._database._connection
        if fault is Fault.READ_ONLY:
            connection.execute("PRAGMA query_only = ON")
        elif fault is Fault.FULL:
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            connection.execute(f"PRAGMA max_page_count = {pages}")

    def repair(self) -> None:
        """End all faults."""
        connection = self._database._connection
        connection.execute("PRAGMA query_only = OFF")
        connection.execute(f"PRAGMA max_page_count = {2**30}")
        self.fault = None

    def copy(self) -> bytes:
        """Copy the database as it is now."""
        return self._database._connection.serialize()

    def set_back(self, copy: bytes) -> None:
        """Replace the database by a copy, as people do who restore one from last night."""
        # Another connection deserializes it: SQLite may crash in one that writes to a database that it deserialized.
        with closing(sqlite3.connect(":memory:")) as source:
            source.deserialize(copy)
            source.backup(self._database._connection)

    def append(self, entries: Sequence[Entry]) -> None:
        """Write records. Raises `StoreError`."""
        self._database.append(entries)

    def load(self) -> Sequence[Entry]:
        """Read the records that the daemon starts with."""
        return self._database.load()

    def rounds(self, job: str, run: str) -> Sequence[Record]:
        """Read the records about the rounds of a run."""
        return self._database.rounds(job, run)
