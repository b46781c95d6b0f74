"""The messages by which a coordinator reads the log files of a node, piece by piece, when a person asks for them.

They are no levels as the other messages are: each `ReadLog` is answered by one `LogChunk`. A session has one of them on
its way at most, so a log that is read holds up no heartbeat for longer than one chunk takes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from coordinatord.protocol.fields import Count, Counter, Name, RequestNumber, Sentence
from coordinatord.protocol.schema import Strict

LOG_CHUNK_BYTES_MAX = 16 * 1024
"""The limit of one piece: on a line of 256 kbit/s, a heartbeat waits for half a second behind it."""

LOG_BYTES_MAX = 2**62
"""The limit of an offset in a file: more than any file system holds."""

LOG_LINES_MAX = 100_000
"""The limit of the last lines that are asked for: more than anybody reads. A log as a whole has no such limit."""

FILE_MAX = 2**62 - 1
"""The limit of a file's number."""

Offset = Annotated[int, Meta(ge=0, le=LOG_BYTES_MAX)]


class LogStream(StrEnum):
    """A stream of a worker that has a file."""

    STDOUT = "stdout"
    STDERR = "stderr"


class LogPlace(Strict, frozen=True):
    """A place in a log; where the log was rotated, it goes on in the next newer file."""

    file: Annotated[int, Meta(ge=0, le=FILE_MAX)]
    """A number of the file by its inode and beginning, which both stay the same when it is rotated."""
    offset: Offset


class ReadLog(Strict, frozen=True, tag=True):
    """Asks for the next piece of one worker's log; it names no path."""

    request: RequestNumber
    run: Name
    round: Counter
    rank: Count
    stream: LogStream
    after: LogPlace | None
    """Where the last piece ended; None to begin with the last bytes and lines, as many as the next two fields allow."""
    last_bytes: Offset
    last_lines: Annotated[int, Meta(ge=0, le=LOG_LINES_MAX)] | None
    """The most lines to begin with; None for any number."""
    follow: bool
    """Whether a reader waits for more output: a node that ends gives that reader a moment to come to the end."""


class LogChunk(Strict, frozen=True, tag=True):
    """The next piece of a log."""

    request: RequestNumber
    data: Annotated[bytes, Meta(max_length=LOG_CHUNK_BYTES_MAX)]
    place: LogPlace | None
    """Where it ends; None if nothing could be read."""
    more: bool
    """Whether more can be read at once."""
    gap: bool
    """Whether wanted bytes right before this piece are left out: they were rotated away, or are too far back."""
    problem: Sentence
    """Why nothing could be read, for the reader; empty if all is well."""
