"""The streams of workers, and the sinks of their bytes; `pump` drives them.

A stream is the stdout or stderr of one worker, and a sink is where its bytes go: a log file, the terminal with or
without prefixes, or the memory for a report. A stream has several sinks. With rounds in place, a worker and its
children go on in the next round, and may write to the old stream still: it then *follows* the new one, whose sinks get
its bytes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from nodeclient.output.descriptors import READ_BYTES, read
from nodeclient.output.lines import LineCutter, RowJoiner, is_worth_showing, mode_switches
from nodeclient.output.terminal_writer import TerminalWriter

DRAIN_BYTES_MAX = 1024 * 1024
"""The limit of one read from a worker that has ended: the size of the largest pipe of a user without privileges
(pipe-max-size in proc(5)). A pipe has no more, unless children of the worker fill it again."""

STATES_EVERY_S = 10.0
"""How often a state of a progress bar is written to a log, though the bar is drawn ten times a second."""


class Sink:
    """A destination of the bytes of a stream."""

    @property
    def needs_flush(self) -> bool:
        """Whether it buffers bytes, and `flush` is to be called if no more come for a while."""
        return False

    def write(self, chunk: bytes) -> None:
        """Consume the next bytes."""
        raise NotImplementedError

    def flush(self) -> None:
        """Write the buffered bytes: no more have come for a while."""

    def end(self) -> None:
        """Write the buffered bytes: no more will come."""


class WorkerStream:
    """The bytes that a worker writes to one descriptor, and their sinks."""

    def __init__(self, fd: int, sinks: Sequence[Sink], terminal_writer: TerminalWriter | None) -> None:
        """Read from `fd`, which the stream owns from now on; one of the sinks writes to `terminal_writer`, if any."""
        self.fd = fd
        self.terminal_writer = terminal_writer
        self.is_terminal = os.isatty(fd)
        """Whether the worker has a terminal. It has room for 8 KiB, so the worker would block in each of our pauses."""
        self.ended = False
        """Whether the descriptor is closed."""
        self.number = 0
        """The number of this stream in the order of all streams, which the pump sets."""
        self.blocked_since = 0
        """The count of the same counter when the stream began to wait for room; 0 if it does not wait."""
        self.flush_at = 0.0
        """When to flush the sinks, by `time.monotonic`; valid while a sink needs that."""
        self.followers: list[WorkerStream] = []
        """The streams of earlier rounds whose bytes go to the sinks of this one; the pump updates the list."""
        self._sinks = sinks
        self._followed: WorkerStream | None = None
        """The stream whose sinks this one uses, after `follow`."""

    @property
    def is_blocked(self) -> bool:
        """Whether the stream waits for room in the terminal."""
        return self.terminal_writer is not None and self.terminal_writer.is_full

    @property
    def order(self) -> tuple[bool, int, int]:
        """The sort key of the stream: those that have waited longest come first, then the others by number."""
        return not self.blocked_since, self.blocked_since, self.number

    @property
    def needs_flush(self) -> bool:
        """Whether a sink needs a flush."""
        return any(sink.needs_flush for sink in self._sinks)

    def move(self, most: int = READ_BYTES) -> int:
        """Read bytes, and pass them to the sinks; return their number."""
        if self.ended:
            return 0
        chunk, ended = read(self.fd, most)
        if chunk:
            for sink in self._sinks:
                sink.write(chunk)
        if ended:
            self.end()
        return len(chunk)

    def flush(self) -> None:
        """Make the sinks write their buffers."""
        for sink in self._sinks:
            sink.flush()

    def follow(self, other: WorkerStream) -> None:
        """Pass the next bytes to the sinks of another stream: the writer continues in the round of that one."""
        self._end_sinks()
        self._sinks, self._followed = other._sinks, other

    def end(self) -> None:
        """Close the descriptor; a process that still writes there gets SIGPIPE."""
        if not self.ended:
            self.ended = True
            os.close(self.fd)
            self._end_sinks()

    def _end_sinks(self) -> None:
        """End the sinks, unless they are those of another stream (`follow`) that has not ended.

        A later write resumes a sink that has ended.
        """
        if self._followed is None or self._followed.ended:
            for sink in self._sinks:
                sink.end()


class Raw(Sink):
    """Passes a stream unchanged, so that progress bars work."""

    def __init__(self, terminal_writer: TerminalWriter) -> None:
        self._terminal_writer = terminal_writer

    def write(self, chunk: bytes) -> None:
        """Consume the next bytes."""
        self._terminal_writer.write_raw(chunk)


class Prefixed(Sink):
    """Passes a stream in whole lines, each with a prefix; `lines` says what a piece is.

    A text that overwrites itself, such as a progress bar, shows each state in the live line of a terminal. A file or a
    pipe gets a state now and then, and the last one.
    """

    def __init__(self, terminal_writer: TerminalWriter, prefix: bytes) -> None:
        self._terminal_writer = terminal_writer
        self._prefix = prefix
        self._joiner = RowJoiner()
        self._cutter = LineCutter()
        self._overwrites = False
        """Whether the last text that was shown ended with a carriage return, so that the next piece overwrites it."""
        self._state = b""
        """The last complete state, if it is not written yet and the output is no terminal."""
        self._show_at = 0.0
        """When the next state may be written, if the output is no terminal."""

    @property
    def needs_flush(self) -> bool:
        """Whether a text is buffered that is to be shown."""
        return bool(self._state) or (not self._is_drawn and is_worth_showing(self._cutter.unfinished()))

    def write(self, chunk: bytes) -> None:
        """Consume the next bytes."""
        if pieces := self._cutter.feed(self._joiner.feed(chunk)):
            self._write(pieces)
        if self._is_drawn:
            self._terminal_writer.draw_live(self._prefix, self._cutter.unfinished())

    def flush(self) -> None:
        """Show the incomplete piece in the buffer, because its end has not come for a while.

        The beginning of a line, such as a prompt, is written now, and its rest will continue it. A state of a progress
        bar is drawn in the live line of a terminal, where the next state replaces it. A file gets it as a line of its
        own, if it is time for one.
        """
        text = self._cutter.unfinished()
        if self._is_drawn or not is_worth_showing(text):
            self._show_state()
            return
        self._overwrites |= text.endswith(b"\r")  # a state may begin or end with the carriage return
        if self._overwrites and self._terminal_writer.is_terminal:
            self._terminal_writer.draw_live(self._prefix, text)
        elif not self._overwrites:
            self._terminal_writer.write_beginning(self, self._prefix, self._cutter.take_unfinished())
        elif time.monotonic() >= self._show_at:
            self._state = self._cutter.take_unfinished().rstrip(b"\r")
            self._show_state()

    def end(self) -> None:
        """Write an unfinished last line, or else the last state.

        If the last line is invisible, only its terminal modes are passed on, such as one that shows the cursor again.
        """
        line = self._cutter.take_unfinished().rstrip(b"\r")
        if not is_worth_showing(line):
            self._terminal_writer.switch_modes(mode_switches(line))
            line = self._state
        if line:
            self._write(line + b"\n")
        self._terminal_writer.end(self)

    def _write(self, pieces: bytes) -> None:
        """Write complete pieces, but the last one later if the next piece will overwrite it."""
        if self._overwrites and pieces.startswith(b"\n"):
            pieces = pieces[1:]  # the end of a state that `flush` has written with an end of its own
        self._overwrites = pieces.endswith(b"\r")
        progress = self._terminal_writer.write_pieces(self, self._prefix, pieces)
        if not self._terminal_writer.is_terminal:
            self._state = progress
            self._show_state()

    def _show_state(self) -> None:
        """Write the last state as a line, if it is time."""
        now = time.monotonic()
        if self._state and now >= self._show_at:
            self._terminal_writer.write_pieces(self, self._prefix, self._state + b"\n")
            self._state, self._show_at = b"", now + STATES_EVERY_S

    @property
    def _is_drawn(self) -> bool:
        """Whether the incomplete piece is shown in the live line."""
        return self._overwrites and self._terminal_writer.is_terminal and self._cutter.has_unfinished


TAIL_BYTES = 64 * 1024
"""How many of a stream's last bytes are kept: a deep traceback, C++ stacks, and many states of a progress bar."""


class Tail(Sink):
    """Keeps the last bytes of a stream; they may be read by another thread."""

    def __init__(self) -> None:
        self.data = b""
        """The kept bytes. They are replaced, never changed in place, because another thread may read them."""

    def write(self, chunk: bytes) -> None:
        """Consume the next bytes."""
        self.data = (self.data + chunk)[-TAIL_BYTES:]
