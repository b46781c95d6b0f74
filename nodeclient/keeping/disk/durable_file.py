"""Writes files so that each is whole or not there, even after a crash, and reads files without trusting their size.

A file is written under a temporary name, flushed to the disk (fsync) and renamed. Then the folder is flushed, which
makes the rename durable. All of this may block for ever, so it is for a daemon thread. An `OSError` with the number 0
says that a file is not as expected.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from threading import Event

from msgspec import Struct

from coordinatord.protocol.errors import OperationalError
from coordinatord.runtime.private_files import flush_directory

CHUNK_BYTES = 4 << 20
"""How many bytes are written or read at a time. A fast disk takes a few milliseconds for them."""

FLUSH_BYTES = 16 << 20
"""How many bytes are flushed at a time. Only flushed bytes count as progress, so a disk that takes minutes to flush a
whole file would seem to hang. A file server has to flush this many for each node within `disk_thread.STALL_S`: 56 MB/s
for a hundred nodes."""

TRIAL_BYTES = 4096
"""The size of the file that is written to check a folder: one block of usual file systems."""

TEMPORARY = ".tmp"
"""The suffix of a file that is not whole yet."""


class WorkCancelledError(OperationalError):
    """The work was cancelled."""


class Progress:
    """The progress of a thread that reads or writes. Other threads read it, and may cancel the work."""

    def __init__(self, done: int = 0) -> None:
        """Begin with the bytes that were `done` before."""
        self.bytes = done
        """How many bytes were checked, written or read. While this grows, the disk does not hang."""
        self.cancelled = Event()
        """Set once the work was cancelled."""

    def cancel(self) -> None:
        """Make the work end at its next chunk."""
        self.cancelled.set()

    def add(self, count: int) -> None:
        """Count more bytes. Raises `WorkCancelledError` if the work was cancelled."""
        self.bytes += count
        if self.cancelled.is_set():
            raise WorkCancelledError("it is not wanted any more")


class Written(Struct, frozen=True):
    """The result of writing a file."""

    size: int
    crc: int
    """The crc32 of all bytes."""


def write_file(path: Path, blocks: Iterable[memoryview | bytes], progress: Progress) -> Written:
    """Write a file durably: from then on it outlives a crash. Raises `OSError` and `WorkCancelledError`."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{TEMPORARY}")
    size = crc = flushed = 0
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        try:
            for block in blocks:
                view = memoryview(block)
                for begin in range(0, len(view), CHUNK_BYTES):
                    chunk = view[begin : begin + CHUNK_BYTES]
                    _write_all(file, chunk)
                    size, crc = size + len(chunk), zlib.crc32(chunk, crc)
                    if size - flushed >= FLUSH_BYTES:
                        os.fdatasync(file)
                        progress.add(size - flushed)
                        flushed = size
            os.fsync(file)
            progress.add(size - flushed)
        finally:
            os.close(file)
        temporary.rename(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    flush_directory(path.parent)
    return Written(size, crc)


def _write_all(file: int, chunk: memoryview) -> None:
    while chunk:
        chunk = chunk[os.write(file, chunk) :]


def make_folder(folder: Path) -> None:
    """Make a folder and its parents durably, unless they exist. Raises `OSError`."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir()
    flush_directory(folder.parent)


def open_regular(path: Path) -> tuple[int, int]:
    """Open a regular file, and no link; return its descriptor and size. Raises `OSError`."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode):
        os.close(file)
        raise OSError(0, "it is no regular file")
    return file, status.st_size


def read_small_file(path: Path, limit: int) -> bytes:
    """Return the bytes of a file of at most `limit` bytes. Raises `OSError`."""
    file, size = open_regular(path)
    try:
        if size > limit:
            raise OSError(0, f"it has {size:,} bytes, and at most {limit:,} are expected")
        text = b""
        while len(text) < size and (more := os.read(file, size - len(text))):
            text += more
        return text
    finally:
        os.close(file)


def check_writable(folder: Path) -> None:
    """Make a folder if it is missing, write a file there, read it back and delete it. Raises `OSError`."""
    make_folder(folder)
    path, text = folder / f"try-{secrets.token_hex(8)}", secrets.token_bytes(TRIAL_BYTES)
    try:
        write_file(path, [text], Progress())
        if read_small_file(path, TRIAL_BYTES) != text:
            raise OSError(errno.EIO, "it returns other bytes than were written")
    finally:
        path.unlink(missing_ok=True)


def read_into(file: int, at: int, memory: memoryview, crc: int, progress: Progress) -> int:
    """Fill memory with the bytes of a file from `at` on. Raises `OSError` and `WorkCancelledError`.

    `crc` is the crc32 of the bytes before `at`. Return the crc32 that includes the new bytes.
    """
    done = 0
    while done < len(memory):
        chunk = memory[done : done + CHUNK_BYTES]
        count = os.preadv(file, [chunk], at + done)
        if count == 0:
            raise OSError(0, "it has become shorter")
        crc = zlib.crc32(chunk[:count], crc)
        done += count
        progress.add(count)
    return crc
