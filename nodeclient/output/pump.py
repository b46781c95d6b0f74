"""The thread that moves the output of all workers. Wherever the kernel allows it, it waits only in poll(2).

A slow reader blocks only the workers that write to it, in their write(2), and never the event loop or other workers.
When the queue of a terminal is full, the thread stops reading the streams that go there, until there is room again.
Then the stream that has waited longest is read first.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from nodeclient.output.streams import DRAIN_BYTES_MAX, WorkerStream
from nodeclient.output.terminal_writer import TerminalWriter

QUIET_S = 0.5
"""The pause after which the beginning of a line is shown, such as a prompt; few workers pause as long within a line."""

REST_S = 0.001
"""The pause after a poll with few bytes, to read more at once: a worker may write 100,000 single lines a second."""

LITTLE_BYTES = 16 * 1024
"""The most bytes of a poll that is followed by a pause. A pipe has 64 KiB, so no writer blocks during the pause."""

FLUSH_WITHIN_S = 5.0
"""How long a terminal or a pipe may accept nothing at the end: a stopped terminal must not keep a job alive."""

FOLLOWERS_MAX = 16
"""How many earlier streams of a staying worker may follow its present one: each is open in a child process of the
worker. A script that copies its stdout in each round must not use up our descriptors."""

STOP_WITHIN_S = 30.0
"""How long the thread may take to end, for a slow reader or a hung file system."""


class PostedCalls:
    """Calls from other threads. All methods but `post` are for the thread that makes the calls."""

    def __init__(self) -> None:
        self._calls: deque[Callable[[], object]] = deque()
        self.wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """The descriptor that can be read once there are calls."""
        self._poll = select.poll()
        self._poll.register(self.wake, select.POLLIN)

    def post(self, call: Callable[[], object]) -> None:
        """Queue a call."""
        self._calls.append(call)
        os.eventfd_write(self.wake, 1)

    def pause(self, seconds: float) -> None:
        """Wait for some seconds, or until there are calls."""
        self._poll.poll(1000 * seconds)

    def make(self) -> None:
        """Make all calls that were posted."""
        try:
            os.eventfd_read(self.wake)
        except BlockingIOError:
            return
        while self._calls:
            self._calls.popleft()()


class Pump:
    """Moves bytes from streams to terminals and files; the thread starts with the first posted call."""

    def __init__(self, terminal_writers: Sequence[TerminalWriter], on_error: Callable[[Exception], None]) -> None:
        """Prepare the thread; `on_error` is called in it if a bug ends it."""
        self._terminal_writers = terminal_writers
        self._on_error = on_error
        self._calls = PostedCalls()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._streams: dict[int, WorkerStream] = {}
        """The streams that have not ended, by descriptor."""
        self._numbers = 0
        """The last number that a stream has got."""
        self._unfinished: set[WorkerStream] = set()
        """The streams with the beginning of a line, which is shown after a pause."""
        self._stopping = False

    # Methods for other threads

    def post(self, call: Callable[[], object]) -> bool:
        """Run a call in the thread; return False after `stop`, when it makes no more calls."""
        with self._starting:
            if self._stopping:
                return False
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="output", daemon=True)
                thread.start()  # may be refused by the system
                self._thread = thread
            self._calls.post(call)
            return True

    def stop(self) -> None:
        """Write all remaining output and end the thread; wait at most `STOP_WITHIN_S` for its end."""
        with self._starting:
            self._stopping = True
            self._calls.post(lambda: None)
        if self._thread is not None:
            self._thread.join(STOP_WITHIN_S)
            if self._thread.is_alive():
                return  # the thread hangs in a file system, and ends with the process
        os.close(self._calls.wake)

    # Methods for posted calls, which the thread makes

    def add(self, streams: Sequence[WorkerStream]) -> None:
        """Move these streams from now on, until they end."""
        for stream in streams:
            self._numbers += 1
            stream.number = self._numbers
            self._streams[stream.fd] = stream

    def drain(self, stream: WorkerStream) -> None:
        """Move the present content of a stream, however slow its reader is; the size of its pipe limits it."""
        if not stream.ended:
            stream.move(DRAIN_BYTES_MAX)
            self._update(stream)

    def hand_over(self, stream: WorkerStream, successor: WorkerStream) -> None:
        """Move the content of a staying worker's last stream; later content goes to the sinks of its new stream.

        The last stream ends once the worker uses its new one, unless a child process of the worker has it open too.
        """
        for each in (going := [*stream.followers, stream]):
            self.drain(each)
        going = [each for each in going if not each.ended]
        stream.followers, successor.followers = [], going[-FOLLOWERS_MAX:]
        self.retire(going[:-FOLLOWERS_MAX])  # the oldest ones
        for each in successor.followers:
            each.follow(successor)

    def retire(self, streams: Sequence[WorkerStream]) -> None:
        """Move the content of the streams and their followers, and end them, even if a process still has them open."""
        for each in [each for stream in streams for each in (*stream.followers, stream)]:
            self.drain(each)
            self._remove(each)
            each.end()

    # The thread itself

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._run_once()
            self._finish()
        except Exception as error:  # noqa: BLE001 - any error ends the node, and not only this thread
            self._on_error(error)

    def _run_once(self) -> None:
        poll = self._poll_outputs()
        poll.register(self._calls.wake, select.POLLIN)
        for stream in self._streams.values():
            if not stream.is_blocked:
                poll.register(stream.fd, select.POLLIN)
        events = poll.poll(self._timeout_ms())
        ready = [self._streams[fd] for fd, _ in events if fd in self._streams]
        read = self._read_ready(ready)
        self._calls.make()
        self._show_unfinished(time.monotonic())
        self._flush_outputs()
        if 0 < read < LITTLE_BYTES and not self._waiting_outputs and not any(stream.is_terminal for stream in ready):
            self._calls.pause(REST_S)

    def _read_ready(self, ready: list[WorkerStream]) -> int:
        """Move bytes of streams that have some; return their number."""
        read = 0
        # A slow terminal has room for few streams, so the one that waited longest comes first. The others come in the
        # order in which they were added: so a worker's stdout comes before a traceback that followed at once.
        for stream in sorted(ready, key=lambda stream: stream.order):
            if stream.is_blocked:
                self._numbers += 1
                stream.blocked_since = stream.blocked_since or self._numbers
                continue
            stream.blocked_since = 0
            read += stream.move()
            self._update(stream)
        return read

    def _update(self, stream: WorkerStream) -> None:
        """Drop a stream if it has ended, or else set when to show the beginning of its line."""
        if stream.ended:
            self._remove(stream)
        elif stream.needs_flush:
            stream.flush_at = time.monotonic() + QUIET_S
            self._unfinished.add(stream)
        else:
            self._unfinished.discard(stream)

    def _remove(self, stream: WorkerStream) -> None:
        self._unfinished.discard(stream)
        if self._streams.get(stream.fd) is stream:
            del self._streams[stream.fd]

    def _show_unfinished(self, now: float) -> None:
        for stream in [stream for stream in self._unfinished if stream.flush_at <= now and not stream.is_blocked]:
            self._unfinished.discard(stream)
            stream.flush()
            if stream.needs_flush:  # it shows a state of a progress bar only now and then, and this was too early
                stream.flush_at = now + QUIET_S
                self._unfinished.add(stream)

    @property
    def _waiting_outputs(self) -> list[TerminalWriter]:
        return [terminal_writer for terminal_writer in self._terminal_writers if terminal_writer.size]

    def _poll_outputs(self) -> select.poll:
        """Return a poll for room in the outputs that have bytes left to write."""
        poll = select.poll()
        for terminal_writer in self._waiting_outputs:
            poll.register(terminal_writer.fileno(), select.POLLOUT)
        return poll

    def _flush_outputs(self) -> bool:
        """Write as much as there is room for; return whether anything was written."""
        written = [terminal_writer.flush() for terminal_writer in self._terminal_writers]
        return any(written)

    def _timeout_ms(self) -> float | None:
        soonest = min((stream.flush_at for stream in self._unfinished if not stream.is_blocked), default=None)
        return None if soonest is None else max(0.0, 1000 * (soonest - time.monotonic()))

    def _finish(self) -> None:
        """Write all remaining output, and drop an output that takes nothing for `FLUSH_WITHIN_S`."""
        self._calls.make()
        self.retire(list(self._streams.values()))
        flush_by = time.monotonic() + FLUSH_WITHIN_S
        while True:
            if self._flush_outputs():
                flush_by = time.monotonic() + FLUSH_WITHIN_S
            left_s = flush_by - time.monotonic()
            if not self._waiting_outputs or left_s <= 0:
                return
            self._poll_outputs().poll(1000 * left_s)
