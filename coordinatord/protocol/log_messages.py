"""The messages by which a coordinator reads the log files of a node, piece by piece, when a person asks for them.

Most messages have a whole state. These are a question and its answer: one `LogChunk` answers each `ReadLog`. A session,
the connection of a node, has at most one of them in flight, so a log delays a heartbeat by at most one chunk.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from coordinatord.protocol.fields import LOG_PATH_MAX, Count, Counter, Name, RequestNumber, Sentence
from coordinatord.protocol.schema import Strict

LOG_CHUNK_BYTES_MAX = 16 * 1024
"""The limit of one chunk: on a line of 256 kbit/s, it delays a heartbeat by half a second."""

LOG_BYTES_MAX = 2**62
"""The limit of an offset in a file, beyond every file system."""

LOG_LINES_MAX = 100_000
"""The most last lines that may be asked for: more than anybody reads. A whole log has no such limit."""

FILE_MAX = 2**62 - 1
"""The highest number of a file; see `LogPlace`."""

Offset = Annotated[int, Meta(ge=0, le=LOG_BYTES_MAX)]


class LogStream(StrEnum):
    """A stream of a worker; it has its own file."""

    STDOUT = "stdout"
    STDERR = "stderr"


class LogPlace(Strict, frozen=True):
    """A position in a log, which continues in the next newer file after a rotation."""

    file: Annotated[int, Meta(ge=0, le=FILE_MAX)]
    """The file's number, made from its inode and its beginning, which a rotation does not change."""
    offset: Offset


class ReadLog(Strict, frozen=True, tag=True):
    """Asks for the next chunk of a worker's log, by rank and not by path."""

    request: RequestNumber
    run: Name
    round: Counter
    rank: Count
    stream: LogStream
    after: LogPlace | None
    """Where the last chunk ended; None to begin near the end of the log, as the next two fields say."""
    last_bytes: Offset
    """Begin at most this many bytes before the end of the log."""
    last_lines: Annotated[int, Meta(ge=0, le=LOG_LINES_MAX)] | None
    """Begin at most this many lines before the end of the log; None for no limit of lines."""
    follow: bool
    """Whether a reader waits for more output: a node that ends waits a moment for that reader to catch up."""


class LogChunk(Strict, frozen=True, tag=True):
    """The next chunk of a log."""

    request: RequestNumber
    data: Annotated[bytes, Meta(max_length=LOG_CHUNK_BYTES_MAX)]
    place: LogPlace | None
    """Where it ends; None if nothing could be read."""
    more: bool
    """Whether more is available at once."""
    gap: bool
    """Whether wanted bytes right before this chunk are missing: they were rotated away, or are too far back."""
    problem: Sentence
    """Why nothing could be read, for the reader; empty if all is well."""


def stderr_log(log_dir: str, run: str, number: int, rank: int) -> str:
    """Return the path of a worker's stderr in round `number`, on a node whose files are in `log_dir`.

    It is empty if the node keeps no files, or if no message can hold the path.
    """
    path = f"{log_dir}/{run}/round_{number}/{rank}/stderr.log"
    return path if log_dir and len(path) <= LOG_PATH_MAX else ""
