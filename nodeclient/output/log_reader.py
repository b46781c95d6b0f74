"""Reads a chunk of one worker's log, across its rotated files, for `nodeclient logs` and the page.

A log is the current file and its rotated ones, `stdout.log`, `stdout.log.1` and so on, the highest number first. While
it is read, its files may be rotated or deleted. So a reader continues at a `LogPlace`: a number that identifies the
file, whatever its name is by now, and an offset in it.

Call the functions in a thread: a disk may hang. They follow no symbolic link, and read only regular files.
"""

from __future__ import annotations

import os
import stat
from codecs import getincrementaldecoder
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from hashlib import blake2b
from pathlib import Path

from msgspec import Struct

from coordinatord.protocol.log_messages import FILE_MAX, LOG_CHUNK_BYTES_MAX, LogChunk, LogPlace, LogStream, ReadLog
from coordinatord.protocol.text import clip
from nodeclient.output.log_catalogue import open_folder

SEARCH_BYTES_MAX = 8 * 1024 * 1024
"""How far back to search for the last lines: room for thousands of lines of thousands of characters."""

BLOCK_BYTES = 64 * 1024
"""The size of a read while lines are searched for backwards."""

ROTATED_MAX = 100
"""The limit of rotated files to read: each takes a descriptor meanwhile."""

IDENTIFYING_BYTES = 1024
"""How many of a file's first bytes identify it: some ten lines, of which some have a time or a step."""

_INCOMPLETE_BYTES_MAX = 3
"""The most bytes of an incomplete character in UTF-8."""

LOG_START = LogPlace(0, 0)
"""The place in a log without a file yet: its beginning."""

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class _OpenLogFile(Struct, frozen=True):
    """One of the files of a log; offsets and sizes are in bytes."""

    fd: int
    inode: int
    start: int
    """The offset of its first byte in the whole log."""
    size: int


def read_chunk(log_dir: Path, parts: Sequence[str], wanted: ReadLog) -> LogChunk:
    """Read the wanted chunk; `parts` is the path from the log directory to that of the round."""
    try:
        with open_folder(log_dir, *parts) as folder:
            return _read(folder, wanted)
    except FileNotFoundError:
        return refused_chunk(wanted, f"the files of round {wanted.round} were deleted")
    except OSError as error:
        return refused_chunk(wanted, f"the log cannot be read: {error.strerror}")


def refused_chunk(wanted: ReadLog, problem: str) -> LogChunk:
    """Return an answer without data, with the reason."""
    return LogChunk(wanted.request, b"", None, more=False, gap=False, problem=clip(problem, 512))


def _read(folder: int, wanted: ReadLog) -> LogChunk:
    with _files(folder, str(wanted.rank), wanted.stream) as files:
        if not files:
            return LogChunk(wanted.request, b"", LOG_START, more=False, gap=False, problem="")
        start, gap = _start_of_last(files, wanted) if wanted.after is None else _resume(files, wanted.after)
        found = _bytes(files, start, LOG_CHUNK_BYTES_MAX)
        more = start + len(found) < files[-1].start + files[-1].size
        data = found[: len(found) - _incomplete_bytes(found)]
        return LogChunk(wanted.request, data, _place(files, start + len(data)), more=more, gap=gap, problem="")


def _incomplete_bytes(data: bytes) -> int:
    """Return how many of the last bytes belong to an incomplete UTF-8 character.

    Without these bytes, each chunk is valid text, and the next chunk begins with a whole character.
    """
    decoder = getincrementaldecoder("utf-8")("replace")
    decoder.decode(data[-_INCOMPLETE_BYTES_MAX:])
    return len(decoder.getstate()[0])


@contextmanager
def _files(folder: int, rank: str, stream: LogStream) -> Iterator[list[_OpenLogFile]]:
    """Yield the files of a log, the oldest first; none before the worker's first output."""
    with ExitStack() as stack:
        try:
            worker = stack.enter_context(open_folder(folder, rank))
        except FileNotFoundError:
            yield []
            return
        newest_first: dict[tuple[int, int], tuple[int, os.stat_result]] = {}
        is_missing = False
        for count in range(ROTATED_MAX + 1):
            try:
                fd = os.open(f"{stream}.log" + (f".{count}" if count else ""), _FLAGS, dir_fd=worker)
            except FileNotFoundError:
                if is_missing:
                    break
                is_missing = True  # while the files are rotated, one name at a time is free
                continue
            is_missing = False
            stack.callback(os.close, fd)
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise PermissionError(1, f"{stream}.log is no plain file")
            # A file that was rotated within this loop is found a second time under its next name.
            newest_first.setdefault((found.st_dev, found.st_ino), (fd, found))
        files: list[_OpenLogFile] = []
        start = 0
        for fd, found in reversed(newest_first.values()):
            files.append(_OpenLogFile(fd, found.st_ino, start, found.st_size))
            start += found.st_size
        yield files


def _start_of_last(files: Sequence[_OpenLogFile], wanted: ReadLog) -> tuple[int, bool]:
    """Return where the wanted last bytes or lines begin, and whether some of these lines are too far back.

    If both limits are given, the one that begins later counts.
    """
    end = files[-1].start + files[-1].size
    least = max(0, end - wanted.last_bytes)
    if wanted.last_lines is None:
        return least, False
    bound = max(least, end - SEARCH_BYTES_MAX)
    missing = wanted.last_lines
    if end and missing and _bytes(files, end - 1, 1) == b"\n":
        missing += 1  # the end of the last line separates no lines
    at = end
    while at > bound and missing:
        size = min(BLOCK_BYTES, at - bound)
        block = _bytes(files, at - size, size)
        newlines = block.count(b"\n")
        if newlines >= missing:
            place = len(block)
            for _ in range(missing):
                place = block.rfind(b"\n", 0, place)
            return at - size + place + 1, False
        missing, at = missing - newlines, at - size
    return at, bool(missing) and bound > least


def _resume(files: Sequence[_OpenLogFile], after: LogPlace) -> tuple[int, bool]:
    """Return the offset to continue from, and whether something after that place was deleted."""
    for file in files:
        if after.offset <= file.size and _file_id(file, after.offset) == after.file:
            return file.start + after.offset, False
    return 0, after != LOG_START


def _place(files: Sequence[_OpenLogFile], at: int) -> LogPlace:
    file = next(file for file in reversed(files) if file.start <= at)
    return LogPlace(_file_id(file, at - file.start), at - file.start)


def _file_id(file: _OpenLogFile, offset: int) -> int:
    """Return the number that identifies a file, which was read up to `offset`.

    A file system may reuse the inode of a deleted file, so the first bytes count as well.
    """
    begin = os.pread(file.fd, min(offset, IDENTIFYING_BYTES), 0)
    return int.from_bytes(blake2b(b"%d:%b" % (file.inode, begin), digest_size=8).digest()) & FILE_MAX


def _bytes(files: Sequence[_OpenLogFile], start: int, size: int) -> bytes:
    data = b""
    for file in files:
        at = start + len(data) - file.start
        if 0 <= at < file.size and len(data) < size:
            data += os.pread(file.fd, min(size - len(data), file.size - at), at)
    return data
