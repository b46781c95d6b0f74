"""Stores the records of all runs in one SQLite database: appends, reads and deletes them.

Each record is a row, with a number (`seq`) that is never used again. A *run* is one execution of a job, so a job may
have several.

It has no thread, no event loop and no clock, so that the tests that simulate a cluster can run it unchanged. The stores
of the daemon, such as `sqlite_store`, call it in threads.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tempfile
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from coordinatord.core.rounds.values.records import Record, RoundEnded, RoundFormed, RoundsMissed, RunEnded, RunOpened
from coordinatord.core.rounds.values.round_history import ROUND_RECORDS
from coordinatord.store import row_codec
from coordinatord.store.error_texts import DAMAGED, store_errors
from coordinatord.store.interface import Entry, EventPage, LoggedEvent, NothingStoredError, UnreadableStoreError
from coordinatord.store.migrations import STEPS, Steps, migrate, version_of
from coordinatord.store.retention import deletion_by

BUSY_S = 0.5
"""How long a statement waits for another process that writes, such as a person's sqlite3."""

HEADER_BYTES = 100
"""The length of the header of a database file (sqlite.org/fileformat.html, 1.3)."""

WRITE_VERSION, USER_VERSION = slice(18, 19), slice(60, 64)
"""The places of two values in the header."""

WITH_LOG, NO_TABLES = b"\2", bytes(4)
"""Their values in a database that has a log, and in one that has not been migrated yet."""

_ADD = """
    INSERT INTO records (at, job, run, kind, node, round, body)
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
        json_extract(value, '$[3]'), json_extract(value, '$[4]'), json_extract(value, '$[5]'),
        json_extract(value, '$[6]')
    FROM json_each(?) ORDER BY key
"""
"""Adds the rows of a JSON list. (`->>` would be shorter, and needs SQLite 3.38.)"""

_DECIDING = ", ".join(f"('{kind.KIND}')" for kind in (RunOpened, RoundFormed, RoundsMissed, RoundEnded, RunEnded))
"""The kinds of records whose last ones determine the outcome of an ended run."""

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
"""Reads records; a `RoundFormed`, which has all nodes with their ranks, becomes a `RoundRemembered`, which has only the
size of the round."""

_LOAD = f"""
    WITH last AS (SELECT job, run, max(seq) FROM records WHERE kind = 'RunOpened' GROUP BY job),
    ended AS (SELECT job, run FROM last WHERE EXISTS (
        SELECT 1 FROM records WHERE job = last.job AND run = last.run AND kind = 'RunEnded')),
    live AS (SELECT job, run FROM last EXCEPT SELECT job, run FROM ended),
    earlier AS (SELECT job, run FROM records WHERE kind = 'RunOpened' EXCEPT SELECT job, run FROM last),
    deciding(kind) AS (VALUES {_DECIDING}),
    outcome(seq) AS (
        SELECT (SELECT max(seq) FROM records WHERE job = ended.job AND run = ended.run AND kind = deciding.kind)
        FROM ended CROSS JOIN deciding
        UNION
        SELECT (SELECT max(seq) FROM records WHERE job = ended.job AND run = ended.run AND kind = 'RoundEnded'
            AND json_valid(body) AND json_type(body, '$.report') = 'object')
        FROM ended)
    SELECT * FROM records WHERE job = ''  -- drains and judgements of hosts
    UNION ALL SELECT * FROM records WHERE kind = 'JobForgotten'
    UNION ALL SELECT records.* FROM live CROSS JOIN records ON records.job = live.job AND records.run = live.run
    UNION ALL SELECT records.* FROM earlier CROSS JOIN records
        ON records.job = earlier.job AND records.run = earlier.run WHERE kind IN ('RunOpened', 'RunEnded')
    UNION ALL {_IN_BRIEF} WHERE seq IN outcome
    ORDER BY seq
"""  # noqa: S608 - our own text
"""Reads all that a start of the daemon needs. If the `last` run of a job is `live`, these are all of its records. If
it has `ended`, they are only those of its `outcome`, the last record of each deciding kind and the last report: with a
thousand ended jobs, the other records are nearly all the data. Of a job's `earlier` runs, the records of beginning and
end are read. In SQLite, `run` is from the row with `max(seq)`, and a CROSS JOIN reads its left side first."""

_ROUND_KINDS = ", ".join(f"'{kind.KIND}'" for kind in ROUND_RECORDS)

_ROUNDS = f"{_IN_BRIEF} WHERE job = ? AND run = ? AND kind IN ({_ROUND_KINDS}) ORDER BY seq"

_READ_EVENTS = "SELECT seq, at, job, run, kind, node, round, json_extract(body, '$.reason') FROM records"


class Database:
    """An open database."""

    def __init__(self, connection: sqlite3.Connection, where: Path | str, version: int = len(STEPS)) -> None:
        """Use a connection; `where` names the database in errors."""
        self._connection = connection
        # A database in memory ends with its owner. Python 3.13 warns of a connection that is not closed.
        weakref.finalize(self, connection.close)
        self._where = where
        self.version = version
        """The version of the tables: of a copy, before they were migrated; otherwise the newest."""

    @classmethod
    def open(cls, path: Path, steps: Steps = STEPS) -> Self:
        """Open the database file of a state directory, made if missing. Raises `StoreError`."""
        with store_errors(path.parent):
            return cls(_connect(path, steps), path.parent)

    @classmethod
    def open_reader(cls, path: Path) -> Self:
        """Open a database only for reading; it and its writer never wait for each other. Raises `StoreError`."""
        with store_errors(path.parent):
            return cls(_open(_address(path, "mode=ro")), path.parent)

    @classmethod
    def in_memory(cls) -> Self:
        """Make an empty database without a file."""
        connection = _open(":memory:")
        migrate(connection)
        return cls(connection, "in memory")

    @classmethod
    def copy_of(cls, path: Path) -> Self:
        """Copy the database of a state directory into memory, even while it is written. Raises `StoreError`."""
        with store_errors(path.parent):
            connection = _copy_into_memory(path)
            version = version_of(connection)
            migrate(connection)
            return cls(connection, path.parent, version)

    def check(self) -> None:
        """Check every page. Raises `StoreError`."""
        with store_errors(self._where):
            _check(self._connection)

    def append(self, entries: Iterable[Entry]) -> None:
        """Make records durable, all or none of them. Raises `StoreError`; then the call can be retried."""
        with store_errors(self._where), self._connection:
            self._append(entries)

    def shift_times(self, by_s: float) -> None:
        """Add `by_s` to the times of all records. Raises `StoreError`."""
        self._run("UPDATE records SET at = min(max(at + ?, 0.0), ?)", (by_s, row_codec.AT_MAX))

    def _append(self, entries: Iterable[Entry]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        new: list[Entry] = []
        for entry in entries:
            new.append(entry)
            delete_superseded = deletion_by(entry.record)
            if delete_superseded is not None:
                self._insert(new)
                delete_superseded(self._connection)
                new = []
        self._insert(new)

    def _insert(self, new: Sequence[Entry]) -> None:
        """Insert records in one statement.

        After each statement, this thread waits for Python's lock, up to 1 ms while the event loop is busy. With one
        statement a record, the joins of 10,000 nodes would take many seconds more.
        """
        if new:
            rows = [row_codec.encode(entry) for entry in new]
            self._connection.execute(_ADD, (json.dumps(rows, ensure_ascii=False),))

    # For the replica of a history in etcd: etcd makes an append durable before it is committed here

    def fill(self, rows: Iterable[row_codec.Row], identity: str = "") -> None:
        """Insert rows of another store with their numbers, and set its `identity`. Raises `StoreError`."""
        with store_errors(self._where), self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
            if identity:
                self._connection.execute("UPDATE identity SET word = ?", (identity,))

    def track_changes(self) -> None:
        """Track added and deleted rows for `append_uncommitted`, and leave it to the caller to make them durable."""
        with store_errors(self._where):
            self._connection.execute("PRAGMA synchronous = OFF")
            self._connection.execute("CREATE TABLE changed (seq INTEGER PRIMARY KEY, added INTEGER NOT NULL)")
            for verb, row, added in (("INSERT", "new", 1), ("DELETE", "old", 0)):
                self._connection.execute(
                    f"CREATE TRIGGER tracked_{row} AFTER {verb} ON records"  # noqa: S608 - our own text
                    f" BEGIN INSERT OR REPLACE INTO changed VALUES ({row}.seq, {added}); END"
                )

    def append_uncommitted(self, entries: Iterable[Entry]) -> tuple[list[row_codec.Row], list[int]]:
        """Append, and leave the transaction open for `finish`; return the added rows, and the numbers of deleted ones.

        Raises `StoreError`; then no transaction is open.
        """
        with store_errors(self._where):
            (last,) = self._connection.execute("SELECT ifnull(max(seq), 0) FROM records").fetchone()
            try:
                self._append(entries)
                changed = self._connection.execute("SELECT seq, added FROM changed ORDER BY seq").fetchall()
                self._connection.execute("DELETE FROM changed")
                added = self.rows([seq for seq, is_added in changed if is_added])
            except BaseException:
                self._connection.rollback()  # SQLite has done so by itself if the disk is full
                raise
        # A row that was both added and deleted here was never durable, so nobody has to drop it.
        return added, [seq for seq, is_added in changed if not is_added and seq <= last]

    def finish(self, *, commit: bool) -> None:
        """Commit the transaction of `append_uncommitted`, or roll it back. Raises `StoreError`."""
        self._run("COMMIT" if commit else "ROLLBACK")

    def rows(self, seqs: Sequence[int] | None = None) -> list[row_codec.Row]:
        """Return the rows with these numbers, as far as they exist, in order; None: all rows. Raises `StoreError`."""
        condition = "" if seqs is None else "WHERE seq IN (SELECT value FROM json_each(?))"
        statement = f"SELECT * FROM records {condition} ORDER BY seq"  # noqa: S608 - our own text
        return self._run(statement, () if seqs is None else (json.dumps(list(seqs)),))

    def prefetch(self) -> None:
        """Prefetch the rows of the next `load` into a table in memory, unless they are there. Raises `StoreError`.

        It is one statement, which does not need Python's lock, so that another thread can import modules meanwhile.
        """
        self._run("PRAGMA temp_store = MEMORY")
        self._run(f"CREATE TEMP TABLE IF NOT EXISTS prefetched AS {_LOAD}")

    def load(self) -> list[Entry]:
        """Return the records as of the last `prefetch`, or as of now: see `Store.load`. Raises `StoreError`."""
        self.prefetch()
        entries = self._entries("SELECT * FROM prefetched ORDER BY seq")
        self._run("PRAGMA temp_store = DEFAULT")  # drops the table, and frees its memory
        return entries

    def rounds(self, job: str, run: str) -> list[Record]:
        """Return the records about the rounds of a run: see `Store.read_rounds`. Raises `StoreError`."""
        return [entry.record for entry in self._entries(_ROUNDS, (job, run))]

    def runs(self) -> list[tuple[str, str]]:
        """Return job and run of all stored runs, oldest first. Raises `StoreError`."""
        return self._run(
            "SELECT job, run FROM records WHERE job <> '' AND kind <> 'JobForgotten'"
            " GROUP BY job, run ORDER BY min(seq)"
        )

    def history(self, job: str, run: str) -> list[Entry]:
        """Return the stored records of one run, oldest first. Raises `StoreError`."""
        return self._entries("SELECT * FROM records WHERE job = ? AND run = ? ORDER BY seq", (job, run))

    @property
    def identity(self) -> str:
        """A token that no other database has. Raises `StoreError`."""
        [(token,)] = self._run("SELECT word FROM identity")
        return str(token)

    def read_events(
        self, job: str | None, after: int | None, most: int, kinds: Collection[str] = (), since: float = 0.0
    ) -> EventPage:
        """Return a page of events: see `Store.read_events`. Raises `StoreError`."""
        condition = "at >= :since" if job is None else "at >= :since AND job = :job"
        condition += " AND kind IN (SELECT value FROM json_each(:kinds))" if kinds else ""
        arguments = {"job": job, "after": after or 0, "most": most, "since": since, "kinds": json.dumps(list(kinds))}
        order = "DESC" if after is None else "ASC"
        # Read before the page, so that records after it are left to the next call.
        [(newest,)] = self._run("SELECT ifnull(max(seq), 0) FROM records")
        rows = self._run(
            f"{_READ_EVENTS} WHERE {condition} AND seq > :after AND seq <= {newest:d} ORDER BY seq {order} LIMIT :most",
            arguments,
        )
        found = tuple(LoggedEvent(*row) for row in (rows if order == "ASC" else reversed(rows)))
        whole = after is None or len(found) < most
        return EventPage(found, newest if whole else found[-1].number)

    def read_round(self, job: str, run: str, number: int) -> list[Record]:
        """Return a round's records: see `Store.read_round`. Raises `StoreError`."""
        formed = "SELECT max(seq) FROM records WHERE job = ? AND run = ? AND kind = 'RoundFormed' AND round = ?"
        [(seq,)] = self._run(formed, (job, run, number))
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
        [(number,)] = self._run("SELECT count(*) FROM records")
        return int(number)

    def close(self) -> None:
        """Close the file."""
        with store_errors(self._where):
            self._connection.close()

    def _entries(self, query: str, arguments: Sequence[str | int] = ()) -> list[Entry]:
        with store_errors(self._where):
            return [row_codec.decode(row) for row in self._connection.execute(query, arguments)]

    def _run(self, statement: str, arguments: Sequence[float | str] | Mapping[str, Any] = ()) -> list[Any]:
        """Run a statement, and return its rows. Raises `StoreError`."""
        with store_errors(self._where):
            return self._connection.execute(statement, arguments).fetchall()


def _connect(path: Path, steps: Steps = STEPS) -> sqlite3.Connection:
    """Open a database for writing: make it if missing, migrate it, and prove it writable.

    Only a database that needs a migration is checked for damage; for others, call `Database.check`.

    Raises `UnreadableStoreError`, and `sqlite3.Error`.
    """
    # Only this user may read it. SQLite gives its other files the same mode.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    _check_files(path)
    connection = _open(_address(path, "mode=rw"))
    try:
        if version_of(connection, steps) != len(steps):
            _check(connection)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        migrate(connection, steps)
    except BaseException:
        connection.close()
        raise
    return connection


def _copy_into_memory(path: Path) -> sqlite3.Connection:
    """Copy a database without changing its directory, even while a daemon writes to it.

    Raises `NothingStoredError`, `UnreadableStoreError`, `sqlite3.Error` and `OSError`.
    """
    if not path.parent.is_dir():
        raise NothingStoredError("there is no such directory: see --state-dir")
    if not path.exists():
        raise NothingStoredError(f"no coordinatord has kept state in it: it has no {path.name}")
    _check_files(path)
    log, shared = _log_of(path), path.with_name(f"{path.name}-shm")
    with tempfile.TemporaryDirectory() as elsewhere:
        options = "mode=ro"
        if not log.exists():
            options += "&immutable=1"  # no process has it open; without this, SQLite would make `log` and `shared`
        elif not shared.exists():
            # No process has it open, but it was not closed, so SQLite would write to recover it.
            for source in (path, log):
                shutil.copy(source, elsewhere)
            path = Path(elsewhere, path.name)
        with closing(_open(_address(path, options))) as connection:
            _check(connection)
            version_of(connection)  # to refuse one that is newer
            copy = _open(":memory:")
            connection.backup(copy)
    return copy


def _log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _size_of(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _check_files(path: Path) -> None:
    """Refuse a database without its log, and a log without its database: to SQLite, either is an empty database.

    Raises `UnreadableStoreError`, and `OSError`.
    """
    log = _log_of(path)
    log_bytes = _size_of(log)
    # A first start that was killed has left a journal or a log, unless it was killed in the instant between both.
    is_bare = log_bytes is None and not path.with_name(f"{path.name}-journal").exists()
    with path.open("rb") as file:  # read last: a coordinator that ends writes the database, then deletes the log
        header = file.read(HEADER_BYTES)
    if len(header) <= 1 and log_bytes:  # to SQLite, a file of one byte is empty too
        raise UnreadableStoreError(f"{DAMAGED} ({path.name} is empty, and {log.name} is not)")
    if header[WRITE_VERSION] == WITH_LOG and header[USER_VERSION] == NO_TABLES and is_bare:
        raise UnreadableStoreError(f"{DAMAGED} ({path.name} has no tables, and there is no {log.name})")


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
