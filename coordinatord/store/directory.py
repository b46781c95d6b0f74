"""The state directory: locks it for one daemon at a time, and detects that the host's clock was set.

Records have times by the host's clock. If the clock is set, these times are shifted, so that ages stay right. The time
of the host's boot by the same clock shows that: it changes only if the clock is set. The lock file remembers it.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from coordinatord.runtime.boot import boot_clock, boot_id
from coordinatord.runtime.private_files import inherit_owner
from coordinatord.store.error_texts import store_errors
from coordinatord.store.interface import StoreError

DATABASE, LOCK = "state.db", "lock"
"""The names of the files in the directory."""

SHARED_WITHIN_S = 1.0
"""How long a start waits while another program shares the lock: `is_claimed` does so for less than a millisecond."""

LOCK_BYTES_MAX = 200
"""The limit of the lock file's two lines: the id of its process, and the boot id with the boot's time."""

CLOCK_SET_MIN_S = 10.0
"""Smaller differences are ignored: on a busy host, two clocks may be read seconds apart."""


class StateDirectory:
    """A state directory, locked until `close` or the end of this process.

    Before `SqliteStore` loads or appends records, it shifts all times by `clock_set_by_s`, and then calls
    `record_clock`.
    """

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def claim(cls, path: Path) -> Self:
        """Make the directory if missing, only for this user, and lock it. Raises `StoreError`."""
        with store_errors(path):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                inherit_owner(lock, path)
                _lock(path, lock)
                return cls(path, lock)
            except BaseException:
                os.close(lock)
                raise

    @property
    def database(self) -> Path:
        """The file with the history."""
        return self.path / DATABASE

    def check(self) -> None:
        """Check that the directory was not moved or removed, which would hide all later writes. Raises `StoreError`."""
        with store_errors(self.path):
            for name in (LOCK, DATABASE):
                if not (self.path / name).exists():
                    raise StoreError(f"state directory {self.path}: its {name} is gone: put it back")
            there, ours = (self.path / LOCK).stat(), os.fstat(self._lock)
            if there.st_ino != ours.st_ino:
                raise StoreError(f"state directory {self.path}: another one is in its place: put ours back")

    @property
    def clock_set_by_s(self) -> float:
        """The seconds that the clock was set ahead since `record_clock`; 0 after a boot. Raises `StoreError`."""
        with store_errors(self.path):
            same_boot = re.fullmatch(rf"{boot_id()} (-?\d+\.\d+)", _read(self._lock)[1])
        set_by_s = _boot_began_at() - float(same_boot[1]) if same_boot else 0.0
        return set_by_s if abs(set_by_s) >= CLOCK_SET_MIN_S else 0.0

    def record_clock(self) -> None:
        """Record the time of boot by the host's clock. Raises `StoreError`."""
        with store_errors(self.path):
            _write(self._lock, f"{boot_id()} {_boot_began_at()}")

    def chown_database(self) -> None:
        """Make the directory's owner the owner of a database that root created, so that its daemon can open it."""
        with store_errors(self.path):
            handle = os.open(self.database, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                inherit_owner(handle, self.path)
            finally:
                os.close(handle)

    def close(self) -> None:
        """Release the directory for another process."""
        os.close(self._lock)


def is_claimed(path: Path) -> bool:
    """Whether a coordinatord has claimed a state directory. Raises `StoreError`."""
    with store_errors(path):
        try:
            lock = os.open(path / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        try:
            return not _try_lock(lock, fcntl.LOCK_SH)
        finally:
            os.close(lock)


def _boot_began_at() -> float:
    """Return when the host was booted, in seconds since 1970 by its clock, which can be set."""
    return datetime.now(UTC).timestamp() - boot_clock()


def _lock(path: Path, lock: int) -> None:
    """Lock the directory, and write this process's id into the lock file. Raises `StoreError`."""
    until = time.monotonic() + SHARED_WITHIN_S
    while not _try_lock(lock, fcntl.LOCK_EX):
        # A process in `is_claimed` shares the lock for a moment. Only a daemon prevents others from sharing it.
        if _try_lock(lock, fcntl.LOCK_SH):
            if time.monotonic() > until:
                raise StoreError(
                    f"state directory {path}: another program holds a lock on the file {LOCK!r} in it: end that one"
                )
            time.sleep(0.001)  # noqa: TID251 - the end of a share announces nothing
        else:
            raise StoreError(
                f"state directory {path}: another coordinatord has it (process {_read(lock)[0] or 'unknown'}):"
                " end that one, or choose another directory with --state-dir"
            )
    # The kernel releases the lock at any end of the process; the id is for people.
    _write(lock, _read(lock)[1])


def _try_lock(lock: int, operation: int) -> bool:
    """Lock the file without a wait; return whether that was possible."""
    try:
        fcntl.flock(lock, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(lock: int) -> tuple[str, str]:
    """Return the id of the last process with the lock, and the record of the clock; both may be empty."""
    owner, _, clock = os.pread(lock, LOCK_BYTES_MAX, 0).decode(errors="replace").partition("\n")
    return owner, clock.strip()


def _write(lock: int, clock: str) -> None:
    lines = f"{os.getpid()}\n{clock}".encode()
    os.pwrite(lock, lines, 0)
    os.ftruncate(lock, len(lines))
