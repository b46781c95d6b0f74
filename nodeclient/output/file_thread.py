"""The thread that writes log files, so that a hung file system delays no worker, terminal or report.

While a disk is slow, workers block in write(2), and no byte is lost. If a disk hangs for some time, later bytes are
dropped, and their number is written into the file.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from nodeclient.output.files import LogFile, LogFileErrors
from nodeclient.output.lines import LineCutter, as_lines, prefixed
from nodeclient.output.output_settings import Rotation
from nodeclient.output.streams import Sink

WAITING_BYTES_MAX = 8 << 20
"""The limit of queued bytes: as many as a usual disk writes in 0.1 s."""

CALL_BYTES = 256
"""The memory of a queued call without its data. It counts too: a worker may write single bytes."""

HANGS_AFTER_S = 2.0
"""The longest write before the disk counts as hung. Workers wait at most as long."""

END_WITHIN_S = 5.0
"""How long `stop` waits without progress, as for a terminal: a hung disk must not keep a job alive."""


class FileThread:
    """Makes calls that write files, in order, in one thread, which starts with the first of them."""

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        """Begin without calls; `on_error` is called in the thread if a bug ends it."""
        self._on_error = on_error
        self._calls: deque[tuple[Callable[[], object], int]] = deque()
        """The queued calls, each with its size in bytes; the first may be in progress."""
        self._queued_bytes = 0
        self._done = 0
        """How many calls were made."""
        self._first_since = 0.0
        """When the first queued call became the first, by `time.monotonic`."""
        self._stopping = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def post(self, call: Callable[[], object], size: int = 0) -> bool:
        """Queue a call with `size` bytes, and wait until there is room for them.

        Return False if the call is dropped because the disk is hung. A call without bytes, such as one that closes a
        file, is never dropped.
        """
        with self._changed:
            while size and self._queued_bytes and self._queued_bytes + size > WAITING_BYTES_MAX:
                if self.is_hung:
                    return False
                self._changed.wait(HANGS_AFTER_S)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="log files", daemon=True)
                thread.start()  # may be refused by the system
                self._thread = thread
            if not self._calls:
                self._first_since = time.monotonic()
            size += CALL_BYTES
            self._calls.append((call, size))
            self._queued_bytes += size
            self._changed.notify_all()
        return True

    @property
    def is_hung(self) -> bool:
        """Whether a call takes so long that the disk seems to hang."""
        return bool(self._calls) and time.monotonic() >= self._first_since + HANGS_AFTER_S

    def stop(self) -> bool:
        """Make the queued calls while the disk makes progress, and end the thread; return whether all were made."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        done = -1
        while self._thread is not None and self._thread.is_alive() and done < self._done:
            done = self._done
            self._thread.join(END_WITHIN_S)
        return not self._calls

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._calls or self._stopping)
                    if not self._calls:
                        return
                    call, size = self._calls[0]
                call()
                with self._changed:
                    self._calls.popleft()
                    self._queued_bytes -= size
                    self._done += 1
                    self._first_since = time.monotonic()
                    self._changed.notify_all()
        except Exception as error:  # noqa: BLE001 - any error ends the node, and not only this thread
            self._on_error(error)


class FileSink(Sink):
    """A log file as the sink of a stream."""

    def __init__(self, thread: FileThread, path: Path, errors: LogFileErrors, rotation: Rotation | None) -> None:
        """Begin without a file; `thread` opens it at its first byte."""
        self._thread = thread
        self._path = path
        self._errors = errors
        self._file = LogFile(path, errors, rotation)
        self._lost = 0
        """The number of dropped bytes that the file does not have yet."""

    def write(self, chunk: bytes) -> None:
        """Append bytes, or drop them if the disk hangs."""
        if self._thread.post(partial(self._file.write, chunk, self._lost), len(chunk)):
            self._lost = 0
        else:
            self._lost += len(chunk)
        if self._thread.is_hung:
            self._errors.add(self._path, "the file system does not answer")

    def end(self) -> None:
        """Close the file; a later write opens it again."""
        self._thread.post(partial(self._file.end, self._lost))
        self._lost = 0


class Filter(Sink):
    """Copies the lines of one stream that contain any of some words into a file that several streams share.

    It ignores `flush`: it searches only whole lines, however slowly they arrive.
    """

    def __init__(self, words: Sequence[str], prefix: bytes, file: FileSink) -> None:
        self._words = [word.encode() for word in words]
        self._prefix = prefix
        self._file = file
        self._cutter = LineCutter()

    def write(self, chunk: bytes) -> None:
        """Consume the next bytes."""
        self._copy(self._cutter.feed(chunk))

    def end(self) -> None:
        """Search the last line as well, without its end."""
        if line := self._cutter.take_unfinished():
            self._copy(line + b"\n")
        self._file.end()

    def _copy(self, pieces: bytes) -> None:
        if any(word in pieces for word in self._words):
            lines = as_lines(pieces).splitlines(keepends=True)
            found = b"".join(line for line in lines if any(word in line for word in self._words))
            if found:
                self._file.write(prefixed(self._prefix, found))
