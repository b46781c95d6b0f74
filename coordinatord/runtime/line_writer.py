"""Writes log lines in a thread, so that a blocked write does not block the program.

A write may block for ever: if a terminal was stopped with Ctrl-S, if a pager or a journal reads nothing, or if a disk
hangs.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

UNREAD_BYTES_MAX = 1024 * 1024
"""The most bytes of queued lines; later lines are dropped and counted. It has room for ten thousand lines."""

FLUSH_WITHIN_S = 2.0
"""How long the end of a program waits for a slow reader, which must not keep it alive."""

BATCH_BYTES = 64 * 1024
"""The size of one write: the capacity of a pipe."""


class LineWriter:
    """Queues lines for one descriptor, and writes them in a thread, which starts with the first line."""

    def __init__(self, fd: int, lost_line: Callable[[int], bytes]) -> None:
        """Write to `fd`, which the caller owns. `lost_line` makes a line from the number of dropped lines."""
        self._fd = fd
        self._lost_line = lost_line
        self._lines: deque[bytes] = deque()
        self._size = 0
        """The bytes of the queued lines, and of those that are being written."""
        self.lost = 0
        """The number of dropped lines that were not reported yet."""
        self._closing = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def put(self, line: bytes) -> None:
        """Queue a line with its end, from any thread. It is dropped if the queue is full, or after `close`."""
        with self._changed:
            if self._closing or self._size + len(line) > UNREAD_BYTES_MAX:
                self.lost += 1
                return
            self._lines.append(line)
            self._size += len(line)
            if self._thread is None:
                self._start()
            self._changed.notify()

    def close(self, within_s: float = FLUSH_WITHIN_S) -> None:
        """Wait at most `within_s` seconds until all lines are written. If no thread could start, write them here."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(within_s)
        else:
            self._run()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="log lines", daemon=True)
        with suppress(RuntimeError):  # no thread to spare: the next line tries again, or `close` writes all
            thread.start()
            self._thread = thread

    def _run(self) -> None:
        while lines := self._next():
            written = self._write(b"".join(lines))
            with self._changed:
                self._size -= sum(map(len, lines))
                if not written:
                    self.lost += len(lines)
                lost = self.lost if written and not self._lines else 0
            # Dropped lines are reported after all lines that came before them, and only if a write succeeds.
            if lost and self._write(self._lost_line(lost)):
                with self._changed:
                    self.lost -= lost

    def _next(self) -> list[bytes]:
        """Wait for lines; return as many as one write takes, or none at the end."""
        with self._changed:
            while not self._lines and not self._closing:
                self._changed.wait()
            taken: list[bytes] = []
            size = 0
            while self._lines and size < BATCH_BYTES:
                taken.append(self._lines.popleft())
                size += len(taken[-1])
            return taken

    def _write(self, data: bytes) -> bool:
        """Write all of `data`, however long that takes; return False if the descriptor fails."""
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:  # a process that shares the descriptor has made it non-blocking
                poll = select.poll()
                poll.register(self._fd, select.POLLOUT)
                poll.poll()
            except OSError:
                return False
        return True
