"""The state directory: finds it, and locks it for one daemon at a time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Self

from coordinatord.runtime.private_files import hand_over
from coordinatord.store.error_texts import explained
from coordinatord.store.interface import StoreError

DATABASE = "state.db"
LOCK = "lock"


class StateDirectory:
    """A state directory that this process has locked until `release`, or until it ends."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def claim(cls, path: Path) -> Self:
        """Make the directory if it is missing, for this user alone, and lock it. Raises `StoreError`."""
        with explained(path):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                hand_over(lock, path)
                _take(path, lock)
            except BaseException:
                os.close(lock)
                raise
        return cls(path, lock)

    @property
    def database(self) -> Path:
        """The file with the history."""
        return self.path / DATABASE

    def check(self) -> None:
        """Check that it is still the directory that was locked. Raises `StoreError` if it was moved or removed.

        Otherwise everything would go on into files that nobody finds again.
        """
        with explained(self.path):
            for name in (LOCK, DATABASE):
                if not (self.path / name).exists():
                    raise StoreError(f"state directory {self.path}: its {name} is gone: put it back")
            there, ours = (self.path / LOCK).stat(), os.fstat(self._lock)
            if there.st_ino != ours.st_ino:
                raise StoreError(f"state directory {self.path}: another one is in its place: put ours back")

    def hand_over_database(self) -> None:
        """Give a database that root has made to the owner of the directory: its daemon could not open it otherwise."""
        with explained(self.path):
            handle = os.open(self.database, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                hand_over(handle, self.path)
            finally:
                os.close(handle)

    def release(self) -> None:
        """Release the directory for another process."""
        os.close(self._lock)


def is_claimed(path: Path) -> bool:
    """Whether a process has claimed a state directory, as each coordinatord does that has one. Raises `StoreError`."""
    with explained(path):
        try:
            lock = os.open(path / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
    return False


def _take(path: Path, lock: int) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.read(lock, 20).decode(errors="replace").strip()
        raise StoreError(
            f"state directory {path}: another coordinatord has it (process {holder or 'unknown'}):"
            " end that one, or choose another directory with --state-dir"
        ) from error
    # The kernel releases the lock when the process ends, however that happens; the number is for people.
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
