"""Migrates the tables of the database, by the steps from each version to the next.

The version is the number of steps that were run; SQLite stores it as `user_version`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from coordinatord.store.interface import UnreadableStoreError

Steps = Sequence[Sequence[str]]

STEPS: Steps = (
    (
        """
        CREATE TABLE records (
            seq INTEGER PRIMARY KEY,
            at REAL NOT NULL,       -- seconds since 1970, by the clock of the host
            job TEXT NOT NULL,
            run TEXT NOT NULL,
            kind TEXT NOT NULL,     -- the name of a class in coordinatord/core/rounds/values/records.py
            node TEXT,              -- where the record is about one
            round INTEGER,          -- the same
            body TEXT NOT NULL      -- the rest of the record, a JSON object
        )
        """,
        # For a start, which reads how runs began and ended, and for the rounds of a run.
        "CREATE INDEX records_by_kind ON records (job, run, kind)",
        # To delete the records of a node that was in no kept round.
        "CREATE INDEX records_by_node ON records (job, run, node) WHERE node IS NOT NULL",
        # For a start, and to keep a limited number of forgotten jobs.
        "CREATE INDEX records_of_forgotten ON records (seq) WHERE kind = 'JobForgotten'",
        # For the events of a job, and to forget it; without a job, for drains and judgements of hosts.
        "CREATE INDEX records_by_job ON records (job, seq)",
        # To delete drains and judgements of a name that are no longer in force.
        "CREATE INDEX marks_by_name ON records (node, seq) WHERE job = ''",
        # A client that remembers the number of a record can see by it whether the record is of this database.
        "CREATE TABLE identity (word TEXT NOT NULL)",
        "INSERT INTO identity VALUES (lower(hex(randomblob(4))))",
    ),
)
"""The statements that migrate from version 0, which has no tables, to version 1, and so on. Never edit a released step,
because databases of its version exist. A step that changes records uses SQLite's JSON functions on their bodies."""


def version_of(connection: sqlite3.Connection, steps: Steps = STEPS) -> int:
    """Return the version of the tables; 0 if there are none. Raises `UnreadableStoreError` if they are newer."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(steps):
        raise UnreadableStoreError(
            f"it was written by a newer coordinatord (its version is {version}, this one knows up to {len(steps)}):"
            " install that release again, or choose another directory with --state-dir"
        )
    return int(version)


def migrate(connection: sqlite3.Connection, steps: Steps = STEPS) -> None:
    """Migrate the tables to the newest version, in one transaction.

    The version is written even if it is the newest, to detect a read-only database.
    Raises `UnreadableStoreError`, and `sqlite3.Error`.
    """
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        for step in steps[version_of(connection, steps) :]:
            for statement in step:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(steps)}")
