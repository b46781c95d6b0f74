"""The history of all runs in one SQLite database: appends, reads and deletes records.

It has no thread, no event loop and no clock, so that the simulation can run it unchanged; `sqlite_store` is the
daemon's store around it.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tempfile
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Self
from urllib.parse import quote

from coordinatord.core.rounds.values.records import Record, RoundEnded, RoundFormed, RoundsMissed, RunEnded, RunOpened
from coordinatord.core.rounds.values.round_history import ROUND_RECORDS
from coordinatord.store import migrations, row_codec
from coordinatord.store.error_texts import DAMAGED, explained
from coordinatord.store.interface import Entry, EventPage, LoggedEvent, NothingStoredError, UnreadableStoreError
from coordinatord.store.migrations import STEPS, Steps, migrate, refuse_newer, version_of
from coordinatord.store.retention import forget, may_supersede

BUSY_S = 0.5
"""How long to wait for another process that writes, such as a person's sqlite3, before an error."""


def _connect(path: Path, steps: Steps = STEPS) -> sqlite3.Connection:
    """Open a database for writing: make it if missing, migrate it, and prove it writable.

    A database is checked before a migration. Call `check` for any other one.

    Raises `UnreadableStoreError`, and `sqlite3.Error`.
    """
    # Only this user may read it. SQLite gives its other files the same mode.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    connection = _open(_address(path, "mode=rw"))
    try:
        refuse_newer(connection, steps)
        if version_of(connection) != len(steps):
            _check(connection)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        migrate(connection, steps)
    except BaseException:
        connection.close()
        raise
    return connection


def connect_in_memory() -> sqlite3.Connection:
    """Make a database that ends with its connection."""
    connection = _open(":memory:")
    migrate(connection)
    return connection


def _copy_into_memory(path: Path) -> sqlite3.Connection:
    """Copy the present content of a database, and leave no trace, even while a daemon writes to it.

    Raises `NothingStoredError`, `UnreadableStoreError`, `sqlite3.Error` and `OSError`.
    """
    if not path.parent.is_dir():
        raise NothingStoredError("there is no such directory: see --state-dir")
    if not path.exists():
        raise NothingStoredError(f"no coordinatord has kept state in it: it has no {path.name}")
    log, shared = (path.with_name(path.name + suffix) for suffix in ("-wal", "-shm"))
    with tempfile.TemporaryDirectory() as elsewhere:
        options = "mode=ro"
        if not log.exists():
            options += "&immutable=1"  # no process has it open; otherwise SQLite would make both files
        elif not shared.exists():
            # No process has it open either, but it was not closed, so SQLite would have to write for its recovery.
            for source in (path, log):
                shutil.copy(source, elsewhere)
            path = Path(elsewhere, path.name)
        with closing(_open(_address(path, options))) as connection:
            _check(connection)
            refuse_newer(connection)
            copy = _open(":memory:")
            connection.backup(copy)
    return copy


def _address(path: Path, options: str) -> str:
    return f"file://{quote(os.fsencode(path.absolute()))}?{options}"


def _open(location: str) -> sqlite3.Connection:
    # Transactions are explicit. The connection is made in one thread and used in another, never in two at once.
    return sqlite3.connect(location, timeout=BUSY_S, isolation_level=None, check_same_thread=False, uri=True)


def _check(connection: sqlite3.Connection) -> None:
    """Check every page. Raises `UnreadableStoreError`, and `sqlite3.Error`."""
    (first,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if first != "ok":
        raise UnreadableStoreError(f"{DAMAGED} (SQLite: {' '.join(str(first).split())})")


_ADD = """
    INSERT INTO records (at, job, run, kind, node, round, body)
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
        json_extract(value, '$[3]'), json_extract(value, '$[4]'), json_extract(value, '$[5]'),
        json_extract(value, '$[6]')
    FROM json_each(?) ORDER BY key
"""
"""Adds the rows of a JSON list. (`->>` would be shorter, and needs SQLite 3.38.)"""

_DECIDING = ", ".join(f"('{kind.KIND}')" for kind in (RunOpened, RoundFormed, RoundsMissed, RoundEnded, RunEnded))
"""The kinds whose last record determines the outcome of a run that has ended."""

_IN_BRIEF = """
    SELECT seq, at, job, run, CASE WHEN kind = 'RoundFormed' AND json_valid(body) THEN 'RoundRemembered' ELSE kind END,
        node, round,
        CASE WHEN kind = 'RoundFormed' AND json_valid(body) THEN json_object(
            'reason', json_extract(body, '$.reason'),
            'nodes', json_array_length(body, '$.nodes'),
            'workers', json_extract(body, '$.nodes[#-1].first_rank') + json_extract(body, '$.nodes[#-1].workers'),
            'spent', json_extract(body, '$.spent')) ELSE body END
    FROM records
"""
"""Reads records, but only the size of each round that was formed."""

_LOAD = f"""
    WITH last AS (SELECT job, run, max(seq) FROM records WHERE kind = 'RunOpened' GROUP BY job),
    over AS (SELECT job, run FROM last WHERE EXISTS (
        SELECT 1 FROM records WHERE job = last.job AND run = last.run AND kind = 'RunEnded')),
    live AS (SELECT job, run FROM last EXCEPT SELECT job, run FROM over),
    earlier AS (SELECT job, run FROM records WHERE kind = 'RunOpened' EXCEPT SELECT job, run FROM last),
    deciding(kind) AS (VALUES {_DECIDING}),
    final(seq) AS (
        SELECT (SELECT max(seq) FROM records WHERE job = over.job AND run = over.run AND kind = deciding.kind)
        FROM over CROSS JOIN deciding
        UNION
        SELECT (SELECT max(seq) FROM records WHERE job = over.job AND run = over.run AND kind = 'RoundEnded'
            AND json_valid(body) AND json_type(body, '$.report') = 'object')
        FROM over)
    SELECT * FROM records WHERE job = ''
    UNION ALL SELECT * FROM records WHERE kind = 'JobForgotten'
    UNION ALL SELECT records.* FROM live CROSS JOIN records ON records.job = live.job AND records.run = live.run
    UNION ALL SELECT records.* FROM earlier CROSS JOIN records
        ON records.job = earlier.job AND records.run = earlier.run WHERE kind IN ('RunOpened', 'RunEnded')
    UNION ALL {_IN_BRIEF} WHERE seq IN final
    ORDER BY seq
"""  # noqa: S608 - our own text
"""Reads the whole history of live runs. Of a run that has ended, it reads only the last record of each deciding kind,
and the last report: its other records no longer matter, and are nearly all of the data when a thousand jobs are over.
Of the earlier runs of a job, it reads the beginning and the end."""

_ROUND_KINDS = ", ".join(f"'{kind.KIND}'" for kind in ROUND_RECORDS)

_ROUNDS = f"{_IN_BRIEF} WHERE job = ? AND run = ? AND kind IN ({_ROUND_KINDS}) ORDER BY seq"

_READ_EVENTS = "SELECT seq, at, job, run, kind, node, round, json_extract(body, '$.reason') FROM records"


class Database:
    """An open database; `where` names it in errors."""

    def __init__(self, connection: sqlite3.Connection, where: Path | str, version: int = len(STEPS)) -> None:
        self._connection = connection
        # A database in memory ends with its owner. Python 3.13 warns of a connection that is not closed.
        weakref.finalize(self, connection.close)
        self._where = where
        self._gathered = False
        """Whether `gather` was called for the next `load`."""
        self.version = version
        """The version of its tables before the migration."""

    @classmethod
    def open(cls, path: Path, steps: Steps = STEPS) -> Self:
        """Open the database file of a state directory, made if missing. Raises `StoreError`."""
        with explained(path.parent):
            return cls(_connect(path, steps), path.parent)

    @classmethod
    def beside(cls, path: Path) -> Self:
        """Open a file for reading that another connection of this process writes; neither waits for the other.

        Raises `StoreError`.
        """
        with explained(path.parent):
            return cls(_open(_address(path, "mode=ro")), path.parent)

    @classmethod
    def in_memory(cls) -> Self:
        """Make an empty database without a file."""
        return cls(connect_in_memory(), "in memory")

    @classmethod
    def copy_of(cls, path: Path) -> Self:
        """Copy the database file of a state directory into memory, while another process may write it.

        Raises `StoreError`.
        """
        with explained(path.parent):
            connection = _copy_into_memory(path)
            version = migrations.version_of(connection)
            migrations.migrate(connection)
            return cls(connection, path.parent, version)

    def check(self) -> None:
        """Check every page. Raises `StoreError`."""
        with explained(self._where):
            _check(self._connection)

    def append(self, entries: Iterable[Entry]) -> None:
        """Make records durable, in order and all or none. Raises `StoreError`.

        After an error none of them is stored, and the call can be retried.
        """
        with explained(self._where), self._rolled_back_on_error():
            self._append(entries)
            self._connection.execute("COMMIT")

    def move(self, by_s: float) -> None:
        """Add so many seconds to the times of all records. Raises `StoreError`."""
        with explained(self._where):
            self._connection.execute("UPDATE records SET at = min(max(at + ?, 0.0), ?)", (by_s, row_codec.AT_MAX))

    def _append(self, entries: Iterable[Entry]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        new: list[Entry] = []
        for entry in entries:
            new.append(entry)
            if may_supersede(entry.record):
                self._insert(new)
                new = []
        self._insert(new)

    @contextmanager
    def _rolled_back_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            if self._connection.in_transaction:  # SQLite ends it by itself when the disk is full
                self._connection.execute("ROLLBACK")
            raise

    def _insert(self, new: Sequence[Entry]) -> None:
        """Insert records, and delete those that the new ones supersede.

        One statement inserts all of them. Each statement releases Python's lock and waits for it again, up to 5 ms
        while the event loop is busy. One statement a record would delay the joins of 10,000 nodes by many seconds.
        """
        if new:
            rows = [row_codec.encode(entry) for entry in new]
            self._connection.execute(_ADD, (json.dumps(rows, ensure_ascii=False),))
            forget(self._connection, new[-1].record)

    # For a store whose rows are durable elsewhere

    def fill(self, rows: Iterable[row_codec.Row], identity: str = "") -> None:
        """Insert rows with their numbers, and the `identity` of their store. Raises `StoreError`."""
        with explained(self._where), self._rolled_back_on_error():
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
            if identity:
                self._connection.execute("UPDATE identity SET word = ?", (identity,))
            self._connection.execute("COMMIT")

    def track_changes(self) -> None:
        """Track for `begin` which rows are added and deleted, so that the caller can make them durable elsewhere."""
        with explained(self._where):
            self._connection.execute("PRAGMA synchronous = OFF")
            self._connection.execute("CREATE TABLE changed (seq INTEGER PRIMARY KEY, added INTEGER NOT NULL)")
            for verb, row, added in (("INSERT", "new", 1), ("DELETE", "old", 0)):
                self._connection.execute(
                    f"CREATE TRIGGER tracked_{row} AFTER {verb} ON records"  # noqa: S608 - our own text
                    f" BEGIN INSERT OR REPLACE INTO changed VALUES ({row}.seq, {added}); END"
                )

    def begin(self, entries: Iterable[Entry]) -> tuple[list[int], list[int]]:
        """Append, and leave the transaction open for `end`; return the numbers of the added and of the deleted rows.

        Raises `StoreError`; then no transaction is open.
        """
        with explained(self._where), self._rolled_back_on_error():
            (last,) = self._connection.execute("SELECT ifnull(max(seq), 0) FROM records").fetchone()
            self._append(entries)
            changed = self._connection.execute("SELECT seq, added FROM changed ORDER BY seq").fetchall()
            self._connection.execute("DELETE FROM changed")
        return [seq for seq, added in changed if added], [seq for seq, added in changed if not added and seq <= last]

    def end(self, *, keep: bool) -> None:
        """Commit the transaction of `begin`, or roll it back without `keep`. Raises `StoreError`."""
        with explained(self._where):
            self._connection.execute("COMMIT" if keep else "ROLLBACK")

    def rows(self, seqs: Sequence[int] | None = None) -> list[row_codec.Row]:
        """Return the existing rows of these numbers, in order; all rows for None. Raises `StoreError`."""
        condition = "" if seqs is None else "WHERE seq IN (SELECT value FROM json_each(?))"
        with explained(self._where):
            return self._connection.execute(
                f"SELECT * FROM records {condition} ORDER BY seq",  # noqa: S608 - our own text
                () if seqs is None else (json.dumps(list(seqs)),),
            ).fetchall()

    def gather(self) -> None:
        """Prefetch the rows of the next `load` into a table in memory. Raises `StoreError`.

        It is one statement that leaves Python's lock free, so that another thread can import the program meanwhile. Row
        by row, each row would have to wait for the lock.
        """
        with explained(self._where):
            self._connection.execute("PRAGMA temp_store = MEMORY")
            self._connection.execute(f"CREATE TEMP TABLE gathered AS {_LOAD}")
        self._gathered = True

    def load(self) -> list[Entry]:
        """Return the history up to the last `gather`, or up to now: see `Store.load`.

        Raises `StoreError`.
        """
        if not self._gathered:
            self.gather()
        self._gathered = False
        with explained(self._where):
            rows = self._connection.execute("SELECT * FROM gathered ORDER BY seq").fetchall()
            self._connection.execute("PRAGMA temp_store = DEFAULT")  # drops the table, and frees its memory
            return [row_codec.decode(row) for row in rows]

    def rounds(self, job: str, run: str) -> list[Record]:
        """Return the records about the rounds of a run: see `Store.read_rounds`. Raises `StoreError`."""
        return [entry.record for entry in self._entries(_ROUNDS, (job, run))]

    def runs(self) -> list[tuple[str, str]]:
        """Return job and run of every stored history, oldest first. Raises `StoreError`."""
        with explained(self._where):
            return self._connection.execute(
                "SELECT job, run FROM records WHERE job <> '' AND kind <> 'JobForgotten'"
                " GROUP BY job, run ORDER BY min(seq)"
            ).fetchall()

    def history(self, job: str, run: str) -> list[Entry]:
        """Return the stored records of one run, oldest first. Raises `StoreError`."""
        return self._entries("SELECT * FROM records WHERE job = ? AND run = ? ORDER BY seq", (job, run))

    @property
    def identity(self) -> str:
        """A token that no other database has. Raises `StoreError`."""
        with explained(self._where):
            (token,) = self._connection.execute("SELECT word FROM identity").fetchone()
        return str(token)

    def read_events(
        self, job: str | None, after: int | None, most: int, kinds: Collection[str] = (), since: float = 0.0
    ) -> EventPage:
        """Return the next `most` such records with a greater number than `after`; None: the newest.

        Raises `StoreError`.
        """
        condition = "at >= :since" if job is None else "at >= :since AND job = :job"
        condition += " AND kind IN (SELECT value FROM json_each(:kinds))" if kinds else ""
        arguments = {"job": job, "after": after or 0, "most": most, "since": since, "kinds": json.dumps(list(kinds))}
        order = "DESC" if after is None else "ASC"
        with explained(self._where):
            # This is read first, so that new records are left to the next call.
            (newest,) = self._connection.execute("SELECT ifnull(max(seq), 0) FROM records").fetchone()
            rows = self._connection.execute(
                f"{_READ_EVENTS} WHERE {condition} AND seq > :after AND seq <= {newest:d}"
                f" ORDER BY seq {order} LIMIT :most",
                arguments,
            ).fetchall()
        found = tuple(LoggedEvent(*row) for row in (rows if order == "ASC" else reversed(rows)))
        whole = after is None or len(found) < most
        return EventPage(found, newest if whole else found[-1].number)

    def read_round(self, job: str, run: str, number: int) -> list[Record]:
        """Return the `RoundFormed` of a round, after the last `NodeJoined` of each node before it.

        Raises `StoreError`.
        """
        formed = "SELECT max(seq) FROM records WHERE job = ? AND run = ? AND kind = 'RoundFormed' AND round = ?"
        with explained(self._where):
            (seq,) = self._connection.execute(formed, (job, run, number)).fetchone()
        if seq is None:
            return []
        entries = self._entries(
            "SELECT * FROM records WHERE seq = ? OR seq IN (SELECT max(seq) FROM records"
            " WHERE job = ? AND run = ? AND kind = 'NodeJoined' AND seq < ? GROUP BY node) ORDER BY seq",
            (seq, job, run, seq),
        )
        return [entry.record for entry in entries]

    def count(self) -> int:
        """Return how many records there are. Raises `StoreError`."""
        with explained(self._where):
            (number,) = self._connection.execute("SELECT count(*) FROM records").fetchone()
        return int(number)

    def close(self) -> None:
        """Close the file."""
        with explained(self._where):
            self._connection.close()

    def _entries(self, query: str, arguments: Sequence[str | int] = ()) -> list[Entry]:
        with explained(self._where):
            return [row_codec.decode(row) for row in self._connection.execute(query, arguments)]
