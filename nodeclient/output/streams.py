"""One stream of one worker, from its pipe to its sinks; `pump` drives it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from nodeclient.output.descriptors import READ_BYTES, read
from nodeclient.output.lines import FrameJoiner, LineCutter, is_seen, modes
from nodeclient.output.terminal_writer import TerminalWriter

DRAIN_BYTES_MAX = 1024 * 1024
"""The most that is read at once from a worker that has ended: the size of the largest pipe of a user without privileges
(pipe-max-size in proc(5)). A pipe holds no more, unless children of the worker fill it again."""

STATES_EVERY_S = 10.0
"""How often a state of a progress bar is written if the output is no terminal: a bar is drawn ten times a second, and a
log is read later."""


class Sink:
    """A destination of the bytes of a stream."""

    @property
    def wants_quiet(self) -> bool:
        """Whether it holds bytes back, so that `quiet` has to be called if no more come."""
        return False

    def write(self, chunk: bytes) -> None:
        """Take the next bytes."""
        raise NotImplementedError

    def quiet(self) -> None:
        """Write what is held back: no bytes have come for a while."""

    def end(self) -> None:
        """Write what is held back: no more bytes will come."""


class WorkerStream:
    """The bytes that a worker writes to one descriptor, and their sinks."""

    def __init__(self, fd: int, sinks: Sequence[Sink], terminal_writer: TerminalWriter | None) -> None:
        """Read from `fd`, which the stream owns from now on; `terminal_writer` is the sink that may get full."""
        self.fd = fd
        self.terminal_writer = terminal_writer
        self.ended = False
        self.number = 0
        """The place of this stream in the order of all streams, set by the pump."""
        self.waits_since = 0
        """A number from a counter, taken when the stream began to wait for room; 0 if it does not wait."""
        self.quiet_at = 0.0
        self.followers: list[WorkerStream] = []
        """The streams of earlier rounds whose bytes go to the sinks of this one."""
        self._sinks = sinks
        self._followed: WorkerStream | None = None

    @property
    def held(self) -> bool:
        """Whether the stream has to wait until the terminal has room."""
        return self.terminal_writer is not None and self.terminal_writer.full

    @property
    def turn(self) -> tuple[bool, int, int]:
        """The sort key of the stream: those that have waited longest come first, then the others in their order."""
        return not self.waits_since, self.waits_since, self.number

    @property
    def wants_quiet(self) -> bool:
        """Whether a sink holds bytes back."""
        return any(sink.wants_quiet for sink in self._sinks)

    def carry(self, most: int = READ_BYTES) -> int:
        """Read bytes, and pass them to the sinks; return how many they were."""
        if self.ended:
            return 0
        chunk, ended = read(self.fd, most)
        if chunk:
            for sink in self._sinks:
                sink.write(chunk)
        if ended:
            self.end()
        return len(chunk)

    def quiet(self) -> None:
        """Have the sinks write what they hold back."""
        for sink in self._sinks:
            sink.quiet()

    def follow(self, other: WorkerStream) -> None:
        """Pass the next bytes to the sinks of another stream: what writes here goes on in the round of that one."""
        self._end_sinks()
        self._sinks, self._followed = other._sinks, other

    def end(self) -> None:
        """Close the descriptor; a process that still writes there gets SIGPIPE."""
        if not self.ended:
            self.ended = True
            os.close(self.fd)
            self._end_sinks()

    def _end_sinks(self) -> None:
        """End the sinks, unless another stream is still to do it. A later write goes on with a sink that has ended."""
        if self._followed is None or self._followed.ended:
            for sink in self._sinks:
                sink.end()


class Raw(Sink):
    """Passes a stream on as it comes, so that progress bars work."""

    def __init__(self, terminal_writer: TerminalWriter) -> None:
        self._terminal_writer = terminal_writer

    def write(self, chunk: bytes) -> None:
        """Take the next bytes."""
        self._terminal_writer.raw(chunk)


class Prefixed(Sink):
    """Passes a stream on in whole lines, each with a prefix.

    A text that overwrites itself, such as a progress bar, shows each state in the live line of a terminal. A file or a
    pipe gets a state now and then, and the last one.
    """

    def __init__(self, terminal_writer: TerminalWriter, prefix: bytes) -> None:
        self._terminal_writer = terminal_writer
        self._prefix = prefix
        self._joiner = FrameJoiner()
        self._cutter = LineCutter()
        self._overwrites = False
        """Whether the last piece ended with a carriage return, so that the next one overwrites it."""
        self._state = b""
        """The last state that was not written, if the output is no terminal."""
        self._show_at = 0.0
        """When the next state may be written, if the output is no terminal."""

    @property
    def wants_quiet(self) -> bool:
        """Whether a piece without its end is held back."""
        return bool(self._state) or (not self._is_drawn and is_seen(self._cutter.unfinished()))

    def write(self, chunk: bytes) -> None:
        """Take the next bytes."""
        if pieces := self._cutter.feed(self._joiner.feed(chunk)):
            self._write(pieces)
        if self._is_drawn:
            self._terminal_writer.live(self._prefix, self._cutter.unfinished())

    def quiet(self) -> None:
        """Show the beginning of a line whose end does not come."""
        if self._is_drawn:
            return
        text = b""
        if is_seen(self._cutter.unfinished()):
            text = self._cutter.take_unfinished()
        if self._overwrites:
            self._state = text.rstrip(b"\r") or self._state
            self._show_state()
            return
        if text.endswith(b"\r"):
            self._write(text)
        elif text:
            self._terminal_writer.begun(self, self._prefix, text)

    def end(self) -> None:
        """Write the last line, though it has no end.

        After the last end of a line a program may still switch modes of the terminal, as rich shows the cursor again.
        """
        line = self._cutter.take_unfinished().rstrip(b"\r")
        if not is_seen(line):
            self._terminal_writer.switch(modes(line))
            line = self._state
        if line:
            self._write(line + b"\n")
        self._terminal_writer.end(self)

    def _write(self, pieces: bytes) -> None:
        ends_state = self._overwrites and not self._terminal_writer.is_terminal and pieces.startswith(b"\n")
        if ends_state:
            pieces = self._state + pieces if self._state else pieces[1:]
        self._overwrites = pieces.endswith(b"\r")
        progress = self._terminal_writer.pieces(self, self._prefix, pieces)
        self._state = b""
        if progress and not self._terminal_writer.is_terminal:
            self._state = progress
            self._show_state()

    def _show_state(self) -> None:
        now = time.monotonic()
        if self._state and now >= self._show_at:
            self._terminal_writer.pieces(self, self._prefix, self._state + b"\n")
            self._state, self._show_at = b"", now + STATES_EVERY_S

    @property
    def _is_drawn(self) -> bool:
        return self._overwrites and self._terminal_writer.is_terminal and self._cutter.has_unfinished


TAIL_BYTES = 64 * 1024
"""How many of the last bytes of a stream are kept: room for a deep traceback with the stacks of C++ below it, and for a
progress bar that was drawn a few hundred times."""


class Tail(Sink):
    """Keeps the last bytes of a stream; they may be read by another thread."""

    def __init__(self) -> None:
        self.data = b""
        """The bytes that are kept. They are replaced, never changed in place, since another thread may read them."""

    def write(self, chunk: bytes) -> None:
        """Take the next bytes."""
        self.data = (self.data + chunk)[-TAIL_BYTES:]
