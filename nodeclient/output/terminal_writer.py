"""Writes to one of this process's own two outputs without mixing lines of workers, log lines and the live line.

The live line is the last one of a terminal, and shows the last state of a progress bar, or why the node waits. Whatever
is written next erases it. All methods but the properties and `size_in_cells` are for the pump's thread. Callers check
`is_full` before they queue more bytes.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from nodeclient.output.descriptors import open_writer
from nodeclient.output.lines import as_overwritten, first_piece, plain, prefixed
from nodeclient.output.text_width import beginning, width

QUEUE_BYTES_MAX = 256 * 1024
"""The limit of queued bytes before workers have to wait: a few full pipes, so that a fast reader need not wait."""

RETRY_AFTER_S = 1.0
"""The pause after a failed write to a file, such as on a full disk."""

COLUMNS = 80
"""The default width of a terminal."""

ROWS = 24
"""The default height of a terminal."""

LIVE_BYTES_MAX = 4096
"""The most queued bytes with which the live line is redrawn: a terminal may be stopped overnight."""

_ERASE_LINE = b"\r\x1b[K"
"""Carriage return, and erase to the end of the line (ECMA-48, EL)."""

_READER_GONE = frozenset({errno.EPIPE, errno.EIO, errno.ECONNRESET})
"""The errors of an output whose reader or terminal is gone, so that nobody would see a warning."""

_JOIN_BYTES = 4096
"""The size up to which writes are joined: one line of each of 64 workers is one write."""


class ByteQueue:
    """The bytes that wait for room in the terminal, pipe, file or socket that `fd` leads to."""

    def __init__(self, fd: int, warn: Callable[[str], None]) -> None:
        """Write to `fd`, which stays open for the caller. Raises `OSError` if it is not open.

        `warn` is called once, with a text, if the output cannot be written.
        """
        self._warn = warn
        self._writer = open_writer(fd)
        self._is_file = stat.S_ISREG(os.fstat(fd).st_mode)
        """Whether it is a file, whose errors may be temporary. A reader that is gone does not come back."""
        self._queue: deque[bytes] = deque()
        self._written = 0
        """How many bytes of the first item in the queue are written."""
        self.size = 0
        """How many bytes wait in the queue."""
        self.broken = False
        """Whether the reader is gone, so that all bytes are dropped."""
        self._retry_at = 0.0
        """The end of the pause after a failed write to a file, by `time.monotonic`; bytes are dropped until then."""
        self._warned = False

    @property
    def is_full(self) -> bool:
        """Whether callers should add nothing more for now."""
        return self.size > QUEUE_BYTES_MAX

    def fileno(self) -> int:
        """Return the descriptor to be polled."""
        return self._writer.fileno()

    def put(self, data: bytes) -> None:
        """Add bytes to the queue."""
        if self.broken or not data:
            return
        self.size += len(data)
        # The first item of the queue may be written in part, and stays as it is.
        if len(self._queue) > 1 and len(self._queue[-1]) + len(data) <= _JOIN_BYTES:
            self._queue[-1] += data
        else:
            self._queue.append(data)

    def flush(self) -> bool:
        """Write as much as there is room for; return whether anything was written."""
        size = self.size
        if time.monotonic() < self._retry_at:
            self._drop()
            return False
        while self._queue:
            try:
                written = self._writer.write(self._queue[0], self._written)
            except BlockingIOError:
                break
            except OSError as error:
                self._fail(error)
                return False
            self.size -= written
            self._written += written
            if self._written == len(self._queue[0]):
                self._queue.popleft()
                self._written = 0
        return self.size < size

    def close(self) -> None:
        """Close the output, and drop the queue."""
        self._drop()
        self.broken = True
        self._writer.close()

    def _fail(self, error: OSError) -> None:
        """Drop the queue, and warn once; only a file is written again later."""
        self._drop()
        if self._is_file:
            self._retry_at = time.monotonic() + RETRY_AFTER_S
        else:
            self.broken = True
        if not self._warned and error.errno not in _READER_GONE:
            self._warned = True
            path = Path(f"/proc/self/fd/{self.fileno()}").readlink()
            self._warn(f"output is lost, since {path} cannot be written: {error.strerror}; training goes on")

    def _drop(self) -> None:
        self._queue.clear()
        self.size = self._written = 0


class TerminalWriter(ByteQueue):
    """One of this process's outputs, in whole lines."""

    def __init__(self, fd: int, warn: Callable[[str], None]) -> None:
        """Begin at the start of a line. Raises `OSError` if `fd` is not open."""
        super().__init__(fd, warn)
        self.fd = fd
        self.is_terminal = os.isatty(fd)
        self._at_start = True
        """Whether the next byte begins a line."""
        self._unfinished: object | None = None
        """The stream that has begun the current line, if it may continue it."""
        self._has_live = False
        """Whether the live line is drawn."""

    def size_in_cells(self) -> tuple[int, int]:
        """Return the columns and the rows of the terminal."""
        try:
            columns, rows = os.get_terminal_size(self._writer.fileno())
        except OSError:
            columns = rows = 0
        return columns or COLUMNS, rows or ROWS

    def write_raw(self, data: bytes) -> None:
        """Pass bytes on as they are."""
        self.put(self._clear_live() + data)
        self._at_start = data.endswith(b"\n")
        self._unfinished = None

    def write_pieces(self, owner: object, prefix: bytes, pieces: bytes) -> bytes:
        """Write complete pieces (see `lines`) of a stream, each with the prefix. The first may end a line begun before.

        Return the text that the next piece will overwrite; a terminal shows it already.
        """
        if self._unfinished is owner:
            head, pieces = first_piece(pieces)
            self.put(head + b"\n")
            self._at_start, self._unfinished = True, None
        lines, progress = as_overwritten(pieces)
        if lines:
            self.put(self._fresh_line() + prefixed(prefix, lines))
        if progress and self.is_terminal:
            self.draw_live(prefix, progress)
        return progress

    def write_beginning(self, owner: object, prefix: bytes, text: bytes) -> None:
        """Write the beginning of a line, or more of it. A line of another stream starts below it."""
        start = b"" if self._unfinished is owner else self._fresh_line() + prefix
        self.put(start + text)
        self._at_start, self._unfinished = False, owner

    def switch_modes(self, modes: bytes) -> None:
        """Switch modes of a terminal, by escape sequences that show nothing."""
        if self.is_terminal:
            self.put(modes)

    def end(self, owner: object) -> None:
        """End the line that a finished stream has begun."""
        if self._unfinished is owner:
            self.put(self._fresh_line())

    def draw_live(self, prefix: bytes, text: bytes) -> None:
        """Draw the live line, or erase it if `prefix` and `text` are empty; do nothing if the terminal is too slow."""
        if not (prefix or text):
            self.put(self._clear_live())
            return
        if self.size > LIVE_BYTES_MAX or self.broken:
            return
        # Only one row can be erased. The last column stays free, or the cursor would wrap.
        room = self.size_in_cells()[0] - 1 - width(plain(prefix.decode(errors="replace")))
        shown = beginning(plain(text.decode(errors="replace")), room).encode()
        self.put((b"" if self._has_live else self._fresh_line()) + _ERASE_LINE + prefix + shown)
        self._has_live = True

    def _fresh_line(self) -> bytes:
        """Return the bytes after which the next output starts at the beginning of a line."""
        if self._has_live:
            return self._clear_live()
        start = b"" if self._at_start else b"\n"
        self._at_start, self._unfinished = True, None
        return start

    def _clear_live(self) -> bytes:
        erase, self._has_live = _ERASE_LINE if self._has_live else b"", False
        return erase
