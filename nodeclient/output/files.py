"""Writes log files that survive errors: a full disk or a removed directory costs lines, never the training.

The bytes that are lost are counted, and their number is written where they are missing, except for lines that went
to a removed file before that was noticed. All methods are for the thread that writes files (`file_thread`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from nodeclient.output.lines import LINE_BYTES_MAX
from nodeclient.output.output_settings import Rotation

RETRY_AFTER_S = 5.0
"""The pause after a failed write: short for a person who made room, long for a broken disk."""

CHECK_S = 1.0
"""How often to check that the file still has a name: lines written to a removed file are lost."""


class LogFileErrors:
    """Warns once that the log files of a round cannot be written, and at the end of each file how much it lacks."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._reported = False

    def add(self, path: Path, why: str) -> None:
        """Warn about an error if it is the first of the round."""
        if not self._reported:
            self._reported = True
            self._warn(
                f"log files cannot be written: {path}: {why}; training goes on, and writing is tried again every "
                f"{RETRY_AFTER_S:g} s"
            )

    def add_lost(self, path: Path, lost: int, why: str) -> None:
        """Warn that the last `lost` bytes are missing in a file, and that it does not say so itself."""
        self._warn(f"the last {lost:,} bytes of output are missing in {path}: {why}")


class LogFile:
    """One log file, opened at its first byte and only appended to."""

    def __init__(self, path: Path, errors: LogFileErrors, rotation: Rotation | None = None) -> None:
        self._path = path
        self._errors = errors
        self._rotation = rotation
        self._fd: int | None = None
        self._size = 0
        self._ends_line = True
        """Whether the last written byte ends a line."""
        self._check_at = 0.0
        """When to check next that the file has a name, by `time.monotonic`."""
        self._retry_at = 0.0
        """When to open the file again after a failure, by `time.monotonic`."""
        self._lost = 0
        """The number of bytes that were lost since the last successful write."""
        self._problem = ""
        """Why they were lost."""

    def write(self, data: bytes, lost_before: int = 0) -> None:
        """Append bytes, or count them as lost; `lost_before` bytes before them are missing."""
        self._count_lost(lost_before)
        while data:
            size = self._size_to_write(data)
            self._append(data[:size])
            data = data[size:]

    def end(self, lost_before: int = 0) -> None:
        """Close the file; a later write opens it again. `lost_before` bytes are missing after the last write.

        If the number of missing bytes cannot be written into the file, the user is told.
        """
        self._count_lost(lost_before)
        if self._lost and time.monotonic() >= self._retry_at:
            self._open()  # this writes the number of missing bytes into the file, and sets it to 0
        self._close()
        if self._lost:
            self._errors.add_lost(self._path, self._lost, self._problem)
            self._lost = 0

    def _count_lost(self, lost: int) -> None:
        """Count bytes that were lost while the file system hung; the file gets their number when it is opened again."""
        if lost:
            self._lost += lost
            self._problem = "the file system did not answer"
            self._close()

    def _size_to_write(self, data: bytes) -> int:
        """Return how many bytes of the data go into the current file; rotate it first if it is full.

        A file is rotated only between two lines, so that each line is whole in one file.
        """
        if self._rotation is None or (room := self._rotation.size - self._size) >= len(data):
            return len(data)
        if room > 0 and (end := data.rfind(b"\n", 0, room) + 1):
            return end
        # The file is full. A file that ends within a line is rotated only if it is `LINE_BYTES_MAX` bytes too large (as
        # a negative `room` says): such a line is longer than any may be, and is cut.
        if self._size > 0 and (self._ends_line or room <= -LINE_BYTES_MAX):
            self._rotate(self._rotation)
            has_rotated = self._size == 0
            return self._size_to_write(data) if has_rotated else len(data)  # rather too large a file than lost lines
        # A line is finished in the file where it began. A line that is longer than a file gets a file of its own.
        return data.find(b"\n") + 1 or len(data)

    def _append(self, data: bytes) -> None:
        now = time.monotonic()
        if self._fd is not None and now >= self._check_at:
            self._check(now)
        if self._fd is None and (now < self._retry_at or not self._open()):
            self._lost += len(data)
            return
        self._write_open(data)

    def _write_open(self, data: bytes) -> bool:
        """Write bytes to the open file; return whether all were written."""
        assert self._fd is not None  # noqa: S101 - the callers have opened it
        left = memoryview(data)
        try:
            while left:
                written = os.write(self._fd, left)
                self._size += written
                left = left[written:]
        except OSError as error:
            self._fail(error)
            self._lost += len(left)
        if len(left) < len(data):
            self._ends_line = data[len(data) - len(left) - 1] == ord("\n")
        return not left

    def _open(self) -> bool:
        """Open the file, and write how many bytes are missing, if any are; return whether that succeeded."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Opening a pipe that somebody has put there would wait for its reader.
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC
            self._fd = os.open(self._path, flags, 0o666)
            self._size = os.fstat(self._fd).st_size
        except OSError as error:
            self._fail(error)
            return False
        self._check_at = time.monotonic() + CHECK_S
        if not self._lost:
            return True
        lost, self._lost = self._lost, 0
        gap = "" if self._ends_line else "\n"
        if self._write_open(f"{gap}[nodeclient: {lost} bytes are missing here: {self._problem}]\n".encode()):
            return True
        self._lost = lost
        return False

    def _check(self, now: float) -> None:
        """Close the file if it was removed, so that the next write makes a new one."""
        self._check_at = now + CHECK_S
        try:
            gone = self._fd is not None and os.fstat(self._fd).st_nlink == 0
        except OSError as error:  # a network file system no longer knows the file
            self._fail(error)
            return
        if gone:
            self._errors.add(self._path, "it was removed")
            self._close()

    def _fail(self, error: OSError) -> None:
        self._problem = error.strerror or str(error)
        self._retry_at = time.monotonic() + RETRY_AFTER_S
        self._errors.add(self._path, self._problem)
        self._close()

    def _rotate(self, rotation: Rotation) -> None:
        self._close()
        try:
            for number in range(rotation.kept, 0, -1):
                source = self._path if number == 1 else self._rotated_path(number - 1)
                with suppress(FileNotFoundError):
                    source.replace(self._rotated_path(number))
            if rotation.kept == 0:
                self._path.unlink(missing_ok=True)
        except OSError as error:
            self._errors.add(self._path, f"it cannot be put aside: {error.strerror}")
        else:
            self._size = 0

    def _rotated_path(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def _close(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            with suppress(OSError):  # a late error of a network file system; these bytes are lost
                os.close(fd)
