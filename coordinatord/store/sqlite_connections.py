"""Connections to a database: to write it, to read a copy that a daemon may be writing, and to a new one in memory."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from coordinatord.store.error_texts import DAMAGED
from coordinatord.store.interface import NothingStoredError, UnreadableStoreError
from coordinatord.store.migrations import STEPS, Steps, migrate, refuse_newer, version_of

BUSY_S = 0.5
"""How long to wait for another process that is writing, such as a person's sqlite3; then it is an error."""


def connect(path: Path, steps: Steps = STEPS) -> sqlite3.Connection:
    """Open a database to write to: make it if missing, migrate it, and prove it writable.

    One that has to be migrated is checked first. Any other has to be checked with `check`.

    Raises `UnreadableStoreError`, and `sqlite3.Error`.
    """
    # Only this user may read it; SQLite gives its other files the same mode.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    connection = _open(_address(path, "mode=rw"))
    try:
        refuse_newer(connection, steps)
        if version_of(connection) != len(steps):
            check(connection)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        migrate(connection, steps)
    except BaseException:
        connection.close()
        raise
    return connection


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Open a database to read it while another connection writes: neither waits. Raises `sqlite3.Error`."""
    return _open(_address(path, "mode=ro"))


def connect_in_memory() -> sqlite3.Connection:
    """Make a database that lasts as long as its connection."""
    connection = _open(":memory:")
    migrate(connection)
    return connection


def copy_into_memory(path: Path) -> sqlite3.Connection:
    """Copy a database as it is at this moment, and leave no trace, whether or not a daemon is writing to it.

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
            # No process has it open either, but it was not closed: SQLite would have to write to put it in order.
            for source in (path, log):
                shutil.copy(source, elsewhere)
            path = Path(elsewhere, path.name)
        with closing(_open(_address(path, options))) as connection:
            check(connection)
            refuse_newer(connection)
            copy = _open(":memory:")
            connection.backup(copy)
    return copy


def _address(path: Path, options: str) -> str:
    return f"file://{quote(os.fsencode(path.absolute()))}?{options}"


def _open(location: str) -> sqlite3.Connection:
    # Transactions are begun and ended by hand. The connection is made in one thread and used in another, never in two
    # at once.
    return sqlite3.connect(location, timeout=BUSY_S, isolation_level=None, check_same_thread=False, uri=True)


def check(connection: sqlite3.Connection) -> None:
    """Check every page. Raises `UnreadableStoreError`, and `sqlite3.Error`."""
    (first,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if first != "ok":
        raise UnreadableStoreError(f"{DAMAGED} (SQLite: {' '.join(str(first).split())})")
