"""Describes the standard output of an operator's command: a terminal of some size, or a pipe or file.

On a terminal, lines fit its width, and a few words are coloured, unless NO_COLOR is set or TERM is dumb.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from enum import StrEnum
from signal import SIGPIPE

from msgspec import Struct

from coordinatord.protocol.errors import OutputError
from coordinatord.runtime.logs import colours_wanted
from nodeclient.output.text_width import width

NARROW = 20
"""The least width in columns for formatting, even on a narrower terminal."""


class Colour(StrEnum):
    """The look of a word on a terminal (ECMA-48, SGR); colours are those of the terminal's own palette."""

    PLAIN = ""
    BOLD = "1"
    FAINT = "2"
    BAD = "31"
    GOOD = "32"
    CHANGING = "33"


class TerminalInfo(Struct, frozen=True):
    """The properties of standard output."""

    columns: int | None
    """None if it is no terminal, or the terminal does not know its width."""
    rows: int
    """0 if it is no terminal, or the terminal does not know its height."""
    is_terminal: bool
    coloured: bool

    def paint(self, text: str, colour: Colour) -> str:
        """Colour a text, if there are colours."""
        return f"\x1b[{colour}m{text}\x1b[0m" if self.coloured and colour and text else text

    def wrapped(self, text: str, indent: str = "  ") -> list[str]:
        """Wrap a long line, and indent all but the first."""
        if self.columns is None or width(text) <= self.columns:
            return [text]
        lines, line = list[str](), ""
        for word in re.findall(r"\s*\S+", text.rstrip()):
            if line and width(line + word) > self.columns:
                lines.append(line)
                line = indent + word.lstrip()
            else:
                line += word
        return [*lines, line]


def terminal() -> TerminalInfo:
    """Describe this process's stdout."""
    if not sys.stdout.isatty():
        return TerminalInfo(columns=None, rows=0, is_terminal=False, coloured=False)
    size = os.get_terminal_size(sys.stdout.fileno())
    columns = max(NARROW, size.columns) if size.columns else None
    return TerminalInfo(columns, size.lines, is_terminal=True, coloured=colours_wanted())


def write(lines: Iterable[str]) -> None:
    """Write lines to stdout and flush, as `write_text` does."""
    write_text("".join(f"{line}\n" for line in lines))


def write_text(text: str) -> None:
    """Write a text to stdout and flush. Ends silently if the reader is gone, as `cat` does. Raises `OutputError`."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python still flushes stdout when it ends
        if isinstance(error, BrokenPipeError):
            sys.exit(128 + SIGPIPE)
        raise OutputError(error) from error
