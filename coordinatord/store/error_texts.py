"""Explains errors of the operating system and SQLite about the state directory, each with its remedy."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coordinatord.store.interface import NothingStoredError, StoreError, UnreadableStoreError

# Each text follows the name of the state directory.
FULL = "the disk is full: make room there"
READ_ONLY = "it is read-only: make it writable, or choose another with --state-dir"
FORBIDDEN = "this user may not use it: change its owner or mode, or choose another with --state-dir"
BUSY = "another process holds its database: end that one"
BROKEN = "the disk reports an error: see the kernel's log"
REMEDY = "restore it from a copy, or move the directory away and begin with an empty one"
DAMAGED = f"its database is damaged: {REMEDY}"

_OF_SYSTEM = {
    errno.ENOSPC: FULL,
    errno.EDQUOT: FULL,
    errno.EROFS: READ_ONLY,
    errno.EACCES: FORBIDDEN,
    errno.EPERM: FORBIDDEN,
    errno.EIO: BROKEN,
    errno.EEXIST: "it is no directory: choose another with --state-dir",
    errno.ENOTDIR: "it is no directory: choose another with --state-dir",
}

_OF_SQLITE = {
    sqlite3.SQLITE_FULL: FULL,
    sqlite3.SQLITE_IOERR_SHMSIZE: FULL,  # its shared memory is a file beside the database
    sqlite3.SQLITE_READONLY: READ_ONLY,
    sqlite3.SQLITE_PERM: FORBIDDEN,
    sqlite3.SQLITE_CANTOPEN: f"its database cannot be opened; most likely {FORBIDDEN}",
    sqlite3.SQLITE_BUSY: BUSY,
    sqlite3.SQLITE_LOCKED: BUSY,
    sqlite3.SQLITE_IOERR: BROKEN,
}

_SIGNS_OF_DAMAGE = ("no such table", "no such column", "Could not decode to UTF-8")
"""Parts of SQLite's messages that show damage for which SQLite has only its generic error code."""

_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


@contextmanager
def store_errors(directory: Path | str) -> Iterator[None]:
    """Convert errors of files and SQLite within the context to a `StoreError` that names the directory.

    It also puts the directory before the text of a `NothingStoredError` and an `UnreadableStoreError`. Any other
    `StoreError` names it already.
    """
    try:
        yield
    except (NothingStoredError, UnreadableStoreError) as error:
        raise type(error)(f"state directory {directory}: {error}") from error
    except sqlite3.Error as error:
        raise _explain_sqlite(directory, error) from error
    except OSError as error:
        why = _OF_SYSTEM.get(error.errno or 0) or os.strerror(error.errno or 0)
        raise StoreError(f"state directory {directory}: {why}") from error


def _explain_sqlite(directory: Path | str, error: sqlite3.Error) -> StoreError:
    detailed = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
    code = detailed & 0xFF  # the higher bits are detail
    if code in _DAMAGE or any(sign in str(error) for sign in _SIGNS_OF_DAMAGE):
        return UnreadableStoreError(f"state directory {directory}: {DAMAGED} (SQLite: {error})")
    why = _OF_SQLITE.get(detailed) or _OF_SQLITE.get(code, "its database fails")
    return StoreError(f"state directory {directory}: {why} (SQLite: {error})")
