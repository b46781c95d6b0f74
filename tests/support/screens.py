"""Real programs on a pseudo-terminal, and what a person sees there: an emulator of the few sequences that ours use."""

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from tests.support.programs import TIMEOUT_S, Program, clean_environ, wait_until

_PIECE = re.compile(r"\x1b\[(?P<arguments>[?\d;]*)(?P<command>[A-Za-z])|(?P<control>[\r\n])|(?P<text>[^\x1b\r\n]+)")

_BEGUN = re.compile(r"(\x1b(\[[?\d;]*)?)?")
"""The beginning of an escape sequence, whose rest may still come."""

ON_ITS_OWN_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""A wrapper that makes the terminal the program's own, so that keys, and another size, become signals."""


def read_terminal(controller: int, pattern: str) -> str:
    """Read what a program draws on its terminal until `pattern` is found in it.

    It is read as it comes: what nobody takes from a program at its end for two seconds is lost.
    """
    drawn = ""
    decoder = codecs.getincrementaldecoder("utf-8")()
    while not re.search(pattern, drawn):
        assert select.select([controller], [], [], TIMEOUT_S)[0], f"no {pattern!r} on the terminal, but {drawn!r}"
        drawn += decoder.decode(os.read(controller, 65_536))
    return drawn


class Screen:
    """What is drawn. Anything that is not understood is an error: no sequence that is not ours may get here."""

    def __init__(self) -> None:
        self.lines: list[str] = [""]
        self.row = self.column = 0
        self.modes: set[str] = {"?25", "?7"}
        """The modes that are on: the cursor is shown, and lines wrap, as on any terminal."""
        self.columns: int | None = None
        """Its width, where that matters: lines do not wrap here."""
        self.colours: set[str] = set()
        """All colours that were ever used."""
        self._other: list[str] = []
        self._rest = ""

    def draw(self, text: str) -> None:
        """Draw a text as a terminal does."""
        text, end = self._rest + text, 0
        while piece := _PIECE.match(text, end):
            end = piece.end()
            if piece["text"]:
                self._write(piece["text"])
            elif piece["control"]:
                self._move(self.row + (piece["control"] == "\n"), 0 if piece["control"] == "\r" else self.column)
            else:
                self._command(piece["command"], piece["arguments"])
        self._rest = text[end:]
        assert _BEGUN.fullmatch(self._rest), f"this means nothing to a terminal: {self._rest[:20]!r}"

    @property
    def text(self) -> str:
        """All lines."""
        return "\n".join(line.rstrip() for line in self.lines)

    def _command(self, command: str, arguments: str) -> None:
        if command == "m":
            self.colours |= {arguments} - {"0"}
        elif command == "H":
            self._move(0, 0)
        elif command == "K":
            self.lines[self.row] = self.lines[self.row][: self.column]
        elif command == "J":
            del self.lines[self.row + 1 :]
            self.lines[self.row] = self.lines[self.row][: self.column]
        else:
            assert command in {"h", "l"}, command
            changed = {arguments}
            self.modes = self.modes | changed if command == "h" else self.modes - changed
            if arguments == "?1049":
                self.lines, self._other = (self._other or [""]), self.lines
                self._move(0, 0)

    def _write(self, text: str) -> None:
        line = self.lines[self.row].ljust(self.column)
        self.lines[self.row] = line[: self.column] + text + line[self.column + len(text) :]
        self.column += len(text)
        if self.columns is not None and "?7" not in self.modes:
            self.column = min(self.column, self.columns - 1)  # it stays on the last character

    def _move(self, row: int, column: int) -> None:
        self.row, self.column = row, column
        self.lines += [""] * (row + 1 - len(self.lines))


class OnTerminal:
    """A program whose input and output are a terminal; its errors are too."""

    def __init__(
        self, *argv: str | Path, columns: int = 100, rows: int = 24, environ: Mapping[str, str] | None = None
    ) -> None:
        self._controller, self._terminal = pty.openpty()
        os.set_blocking(self._controller, False)
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self.screen = Screen()
        self.resize(columns, rows)
        self.settings = termios.tcgetattr(self._terminal)
        """The settings of the terminal when the program was started."""
        self.program = Program(
            *(sys.executable, "-S", "-E", "-c", ON_ITS_OWN_TERMINAL),
            *argv,
            environ=clean_environ(**{"TERM": "xterm", **(environ or {})}),
            stdin=self._terminal,
            stdout=self._terminal,
            stderr=self._terminal,
        )

    def resize(self, columns: int, rows: int) -> None:
        """Give the terminal another size; the program is notified."""
        self.screen.columns = columns
        fcntl.ioctl(self._controller, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: str) -> None:
        """Hit keys."""
        os.write(self._controller, keys.encode())

    def await_text(self, pattern: str) -> str:
        """Wait until this is seen; return all that can be."""

        def look() -> str | None:
            self._read()
            return self.screen.text if re.search(pattern, self.screen.text) else None

        return wait_until(f"{pattern!r} on the terminal, which shows\n{self.screen.text}", look)

    def wait(self) -> int:
        """Wait for the end of the program; return its exit code as a shell has it."""
        code = self.program.wait()
        self._read()
        return code

    @property
    def settings_now(self) -> object:
        """The settings of the terminal."""
        return termios.tcgetattr(self._terminal)

    def close(self) -> None:
        """End the program, and close its terminal."""
        self.program.close()
        os.close(self._controller)
        os.close(self._terminal)

    def _read(self) -> None:
        with suppress(BlockingIOError):
            while some := os.read(self._controller, 65_536):
                self.screen.draw(self._decoder.decode(some))


@contextmanager
def on_terminal(
    *argv: str | Path, columns: int = 100, rows: int = 24, environ: Mapping[str, str] | None = None
) -> Iterator[OnTerminal]:
    """Start a program on a terminal, and end it."""
    with closing(OnTerminal(*argv, columns=columns, rows=rows, environ=environ)) as terminal:
        yield terminal
