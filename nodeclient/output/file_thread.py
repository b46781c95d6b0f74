"""The thread that writes log files, so that a file system which hangs holds up no worker, terminal or report.

While a disk is slow, workers wait in their write(2), and no byte is lost. A disk that takes nothing for some time costs
the bytes that come meanwhile: they are counted, and the file says how many are missing.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from nodeclient.output.files import LogFile, LogFileErrors, Rotation
from nodeclient.output.lines import LineCutter, as_lines, prefixed
from nodeclient.output.streams import Sink

WAITING_BYTES_MAX = 8 << 20
"""The most bytes that wait for the disk: what a usual one takes in a tenth of a second."""

CALL_BYTES = 256
"""What a waiting call takes in memory beside its bytes."""

HANGS_AFTER_S = 2.0
"""How long the disk may take for one write until it counts as one that hangs. Workers wait as long, and no longer."""

END_WITHIN_S = 5.0
"""How long the disk may take nothing at the end, as a terminal may: it must not keep a job from ending."""


class FileThread:
    """Makes calls that write files, in order, in one thread; the thread starts with the first of them."""

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        """Begin without calls; `failed` is called in the thread if it ends by a bug."""
        self._failed = failed
        self._calls: deque[tuple[Callable[[], object], int]] = deque()
        """The calls that are not made yet, each with its size; the first may be in progress."""
        self._bytes = 0
        self._made = 0
        """How many calls were made."""
        self._first_since = 0.0
        """When the first of them became the first, in the seconds of `time.monotonic`."""
        self._stopping = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def post(self, call: Callable[[], object], size: int = 0) -> bool:
        """Have the thread make a call that holds so many bytes, and wait until there is room for them.

        Return False if the disk hangs, and the call is not made. A call without bytes is always made.
        """
        with self._changed:
            while size and self._bytes and self._bytes + size > WAITING_BYTES_MAX:
                if self.hangs:
                    return False
                self._changed.wait(HANGS_AFTER_S)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="log files", daemon=True)
                self._thread.start()
            if not self._calls:
                self._first_since = time.monotonic()
            size += CALL_BYTES
            self._calls.append((call, size))
            self._bytes += size
            self._changed.notify_all()
        return True

    @property
    def hangs(self) -> bool:
        """Whether a call has taken so long that the disk seems to hang."""
        return bool(self._calls) and time.monotonic() >= self._first_since + HANGS_AFTER_S

    def stop(self) -> bool:
        """Have the thread make all calls and end; wait for that as long as the disk takes something.

        Return whether all calls were made.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        made = -1
        while self._thread is not None and self._thread.is_alive() and made < self._made:
            made = self._made
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
                    self._bytes -= size
                    self._made += 1
                    self._first_since = time.monotonic()
                    self._changed.notify_all()
        except Exception as error:  # noqa: BLE001 - any error ends the node, and not only this thread
            self._failed(error)


class FileSink(Sink):
    """A log file as the sink of a stream."""

    def __init__(self, thread: FileThread, path: Path, errors: LogFileErrors, rotation: Rotation | None) -> None:
        """Begin without a file; `thread` opens it at its first byte."""
        self._thread = thread
        self._path = path
        self._errors = errors
        self._file = LogFile(path, errors, rotation)
        self._lost = 0
        """The bytes that were dropped, and of which the file does not know yet."""

    def write(self, chunk: bytes) -> None:
        """Have bytes appended, or drop them if the disk hangs."""
        if self._thread.post(partial(self._file.write, chunk, self._lost), len(chunk)):
            self._lost = 0
        else:
            self._lost += len(chunk)
        if self._thread.hangs:
            self._errors.add(self._path, "the file system does not answer")

    def end(self) -> None:
        """Have the file closed; a later write opens it again."""
        self._thread.post(partial(self._file.end, self._lost))
        self._lost = 0


class Filter(Sink):
    """Copies the lines of one stream that contain any of some words into a file that several streams share.

    It is never `quiet`: a line is searched as a whole, however long it takes to come.
    """

    def __init__(self, words: Sequence[str], prefix: bytes, file: FileSink) -> None:
        self._words = [word.encode() for word in words]
        self._prefix = prefix
        self._file = file
        self._cutter = LineCutter()

    def write(self, chunk: bytes) -> None:
        """Take the next bytes."""
        self._copy(self._cutter.feed(chunk))

    def end(self) -> None:
        """Search the last line as well, though it has no end."""
        if line := self._cutter.take_unfinished():
            self._copy(line + b"\n")
        self._file.end()

    def _copy(self, pieces: bytes) -> None:
        if any(word in pieces for word in self._words):
            lines = as_lines(pieces).splitlines(keepends=True)
            found = b"".join(line for line in lines if any(word in line for word in self._words))
            if found:
                self._file.write(prefixed(self._prefix, found))
