"""One stream of one worker, from its pipe to its sinks; `pump` drives it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Protocol

from nodeclient.output.descriptors import READ_BYTES, read
from nodeclient.output.lines import FrameJoiner, LineCutter, is_seen, modes
from nodeclient.output.terminal_writer import TerminalWriter

DRAIN_BYTES_MAX = 1024 * 1024
"""How much is read at once from a worker that has ended. Its pipe holds no more unless its children fill it again: it
is the largest pipe of a user without privileges (pipe-max-size in proc(5))."""

STATES_EVERY_S = 10.0
"""How often a state of a progress bar is written where the output is no terminal: a bar is drawn ten times a second,
and a log is read later."""


class Sink(Protocol):
    """Something that takes the bytes of a stream."""

    @property
    def wants_quiet(self) -> bool:
        """Whether it waits for more, and wants `quiet` to be called if none comes."""

    def write(self, chunk: bytes) -> None:
        """Take the next bytes."""

    def quiet(self) -> None:
        """Take note that nothing has come for a while."""

    def end(self) -> None:
        """Take note that nothing more will come."""


class WorkerStream:
    """What a worker writes to one descriptor, and the sinks that take it."""

    def __init__(self, fd: int, sinks: Sequence[Sink], terminal_writer: TerminalWriter | None) -> None:
        """Read from `fd`, which the stream owns from now on; `terminal_writer` is the sink that may get full."""
        self.fd = fd
        self.terminal_writer = terminal_writer
        self.ended = False
        self.number = 0
        """The place of this stream among all, set by its reader."""
        self.waits_since = 0
        """A number that grows, taken when the stream began to wait for room; 0 if it does not wait."""
        self.quiet_at = 0.0
        self._sinks = sinks

    @property
    def held(self) -> bool:
        """Whether it has to wait until the terminal has room."""
        return self.terminal_writer is not None and self.terminal_writer.full

    @property
    def turn(self) -> tuple[bool, int, int]:
        """The key that it is sorted by: first those that wait, longest first, then the others in their order."""
        return not self.waits_since, self.waits_since, self.number

    @property
    def wants_quiet(self) -> bool:
        """Whether a sink waits for more."""
        return any(sink.wants_quiet for sink in self._sinks)

    def carry(self, most: int = READ_BYTES) -> int:
        """Read what is there, and pass it to the sinks; return how much it was."""
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
        """Let the sinks write what they have held back."""
        for sink in self._sinks:
            sink.quiet()

    def end(self) -> None:
        """Close the descriptor; a process that still writes there gets SIGPIPE."""
        if not self.ended:
            self.ended = True
            os.close(self.fd)
            for sink in self._sinks:
                sink.end()


class Raw:
    """Passes a stream on, byte by byte as it comes, so that progress bars live."""

    wants_quiet = False

    def __init__(self, terminal_writer: TerminalWriter) -> None:
        self._terminal_writer = terminal_writer

    def write(self, chunk: bytes) -> None:
        """Take the next bytes."""
        self._terminal_writer.raw(chunk)

    def quiet(self) -> None:
        """Do nothing: no bytes are held back."""

    def end(self) -> None:
        """Do nothing: no bytes are held back."""


class Prefixed:
    """Passes a stream on in whole lines, each with a prefix.

    A text that overwrites itself, such as a progress bar, shows each state in a terminal's live line. A file or a pipe
    gets a state now and then, and the last.
    """

    def __init__(self, terminal_writer: TerminalWriter, prefix: bytes) -> None:
        self._terminal_writer = terminal_writer
        self._prefix = prefix
        self._joiner = FrameJoiner()
        self._cutter = LineCutter()
        self._overwrites = False
        """Whether the last piece ended with a carriage return, so that the next one overwrites it."""
        self._state = b""
        """The last state, which will be overwritten, where the output is no terminal."""
        self._show_at = 0.0
        """When to write a state next, where the output is no terminal."""

    @property
    def wants_quiet(self) -> bool:
        """Whether a piece without its end waits."""
        return bool(self._state) or (not self._is_drawn and is_seen(self._cutter.rest()))

    def write(self, chunk: bytes) -> None:
        """Take the next bytes."""
        if pieces := self._cutter.feed(self._joiner.feed(chunk)):
            self._write(pieces)
        if self._is_drawn:
            self._terminal_writer.live(self._prefix, self._cutter.rest())

    def quiet(self) -> None:
        """Show the beginning of a line whose end does not come."""
        if self._is_drawn:
            return
        text = b""
        if is_seen(self._cutter.rest()):
            text = self._cutter.take_rest()
        if self._overwrites:
            self._state = text.rstrip(b"\r") or self._state
            self._show_state()
            return
        if text.endswith(b"\r"):
            self._write(text)
        elif text:
            self._terminal_writer.begun(self, self._prefix, text)

    def end(self) -> None:
        """Write the last line, though it has no end; rich, for one, shows the cursor after the last end of a line."""
        rest = self._cutter.take_rest().rstrip(b"\r")
        if not is_seen(rest):
            self._terminal_writer.switch(modes(rest))
            rest = self._state
        if rest:
            self._write(rest + b"\n")
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
        return self._overwrites and self._terminal_writer.is_terminal and self._cutter.has_rest


TAIL_BYTES = 64 * 1024
"""How much is kept of each worker: room for a deep traceback and the stacks of C++ below it, and for a progress bar
redrawn a few hundred times."""


class Tail:
    """Keeps the last bytes of a stream; they may be read by another thread."""

    wants_quiet = False

    def __init__(self) -> None:
        self.data = b""
        """The bytes that are kept. They are replaced, never changed in place, since another thread may read them."""

    def write(self, chunk: bytes) -> None:
        """Take the next bytes."""
        self.data = (self.data + chunk)[-TAIL_BYTES:]

    def quiet(self) -> None:
        """Do nothing: no bytes are held back."""

    def end(self) -> None:
        """Do nothing: no bytes are held back."""
