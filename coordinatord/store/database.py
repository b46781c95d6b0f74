"""The history of all runs in one SQLite database: what is appended, what is read, what is forgotten.

Knows no thread, no event loop and no clock, so that a simulation can run it as it is; the daemon's store around it is
`sqlite`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

from coordinatord.core.records import Record
from coordinatord.store import codec, connections, layout
from coordinatord.store.interface import Entry, Happening
from coordinatord.store.layout import STEPS, Steps
from coordinatord.store.pruning import forget, makes_forget
from coordinatord.store.troubles import explained

_ADD = """
    INSERT INTO records (at, job, run, kind, node, round, body)
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
        json_extract(value, '$[3]'), json_extract(value, '$[4]'), json_extract(value, '$[5]'),
        json_extract(value, '$[6]')
    FROM json_each(?) ORDER BY key
"""
"""Adds the rows of a JSON list. (`->>` would be shorter, and needs SQLite 3.38.)"""

_HAPPENINGS = """
    SELECT seq, at, job, run, kind, node, round, json_extract(body, '$.reason') FROM records
    WHERE seq > :after AND (:job IS NULL OR job = :job) ORDER BY seq DESC LIMIT :most
"""


class Database:
    """An open database; `where` names it in errors."""

    def __init__(self, connection: sqlite3.Connection, where: Path | str, version: int = len(STEPS)) -> None:
        self._connection = connection
        self._where = where
        self.version = version
        """That its tables had where they came from."""

    @classmethod
    def open(cls, path: Path, steps: Steps = STEPS) -> Self:
        """Open the database file of a state directory, made if missing. Raises `StoreError`."""
        with explained(path.parent):
            return cls(connections.connect(path, steps), path.parent)

    @classmethod
    def in_memory(cls) -> Self:
        """Make an empty one that no file belongs to."""
        return cls(connections.connect_in_memory(), "in memory")

    @classmethod
    def copy_of(cls, path: Path) -> Self:
        """Copy the database file of a state directory into memory, beside whoever writes it. Raises `StoreError`."""
        with explained(path.parent):
            connection = connections.copy_into_memory(path)
            version = layout.version_of(connection)
            layout.migrate(connection)
            return cls(connection, path.parent, version)

    def append(self, records: Iterable[Record], at: float) -> None:
        """Make records durable, in order and all or none, as made at the time `at`. Raises `StoreError`.

        After an error nothing of them is kept, and the same can be asked for again.
        """
        with explained(self._where):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                new: list[Record] = []
                for record in records:
                    new.append(record)
                    if makes_forget(record):
                        self._keep(new, at)
                        new = []
                self._keep(new, at)
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # SQLite ends it by itself when the disk is full
                    self._connection.execute("ROLLBACK")
                raise

    def _keep(self, new: Sequence[Record], at: float) -> None:
        """Add records, and forget what the last of them makes superfluous.

        In one statement: each of them lets go of Python's lock and has to wait for it again, up to 5 ms while the event
        loop is busy. When 10,000 nodes join, one for each of them would keep them from their commit for many seconds.
        """
        if new:
            rows = [codec.encode(record, at) for record in new]
            self._connection.execute(_ADD, (json.dumps(rows, ensure_ascii=False),))
            forget(self._connection, new[-1])

    def load(self) -> list[Entry]:
        """Return the history of the last run of each job, and what is of no job, oldest first. Raises `StoreError`."""
        return self._entries(
            "SELECT * FROM records WHERE (job, run) IN (SELECT job, run FROM ("
            " SELECT job, run, max(seq) FROM records WHERE kind = 'RunOpened' GROUP BY job)) OR job = '' ORDER BY seq"
        )

    def runs(self) -> list[tuple[str, str]]:
        """Return job and run of every history that is kept, oldest first. Raises `StoreError`."""
        with explained(self._where):
            return self._connection.execute(
                "SELECT job, run FROM records WHERE job <> '' AND kind <> 'JobForgotten'"
                " GROUP BY job, run ORDER BY min(seq)"
            ).fetchall()

    def history(self, job: str, run: str) -> list[Entry]:
        """Return what is kept of one run, oldest record first. Raises `StoreError`."""
        return self._entries("SELECT * FROM records WHERE job = ? AND run = ? ORDER BY seq", (job, run))

    def happenings(self, job: str | None, after: int, most: int) -> list[Happening]:
        """Return the newest `most` records with a greater number than `after`, oldest first. Raises `StoreError`."""
        with explained(self._where):
            found = self._connection.execute(_HAPPENINGS, {"job": job, "after": after, "most": most}).fetchall()
        return [Happening(*row) for row in reversed(found)]

    def count(self) -> int:
        """Return how many records there are. Raises `StoreError`."""
        with explained(self._where):
            (number,) = self._connection.execute("SELECT count(*) FROM records").fetchone()
        return int(number)

    def close(self) -> None:
        """Let go of the file."""
        with explained(self._where):
            self._connection.close()

    def _entries(self, query: str, arguments: Sequence[str] = ()) -> list[Entry]:
        with explained(self._where):
            return [codec.decode(row) for row in self._connection.execute(query, arguments)]
