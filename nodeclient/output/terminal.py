"""This process's own lines on its stderr, which it shares with its workers; for any thread."""

from __future__ import annotations

from coordinatord.runtime.line_writer import LineWriter
from nodeclient.output.pump import Pump
from nodeclient.output.terminal_writer import TerminalWriter

UNREAD_BYTES_MAX = 1024 * 1024
"""The most log lines that wait for a stopped terminal; further ones are dropped, so that no caller waits."""


class Terminal:
    """Writes log lines, and draws the live line, in between the lines of workers."""

    def __init__(self, fd: int, pump: Pump, terminal_writer: TerminalWriter) -> None:
        self._fd = fd
        self._pump = pump
        self._terminal_writer = terminal_writer

    @property
    def is_live(self) -> bool:
        """Whether a live line can be drawn and erased."""
        return self._terminal_writer.is_terminal and not self._terminal_writer.broken

    def columns(self) -> int:
        """Return the width of the terminal."""
        return self._terminal_writer.columns()

    def write_lines(self, text: str) -> None:
        """Write lines at the start of a line; `text` is without the end of the last one."""
        data = f"{text}\n".encode(errors="replace")
        if self._terminal_writer.size < UNREAD_BYTES_MAX and not self._pump.post(
            lambda: self._terminal_writer.pieces(self, b"", data)
        ):
            last = LineWriter(self._fd, lambda _: b"")  # the output was closed, and these are the last lines
            last.put(data)
            last.close()

    def draw(self, text: str) -> None:
        """Draw the live line anew; the next output erases it."""
        self._pump.post(lambda: self._terminal_writer.live(b"", text.encode(errors="replace")))
