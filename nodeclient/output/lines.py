"""Splits a stream of bytes into lines, and adds prefixes. Pure: no descriptors, no clock.

A *piece* is a line, or a text that a carriage return ends, such as one state of a progress bar, which the next one
overwrites. A stream first passes a `LineCutter`. Then `as_overwritten` keeps only the last state for a terminal, while
`as_lines` keeps all of them for a file. `prefixed` comes last. Where workers share a terminal, a `RowJoiner` precedes.

An incomplete last line, such as a prompt, is shown too if it `is_worth_showing`. Once the rest of it has come,
`first_piece` splits that off, because it gets no prefix.
"""

from __future__ import annotations

import ipaddress
import re
from string import Template

from msgspec import Struct

LINE_BYTES_MAX = 2 * 1024 * 1024
"""The limit of a line, and so of a stream's memory: people print lines half as long on purpose."""

INVISIBLE_BYTES_MAX = 256
"""The limit of an incomplete line that counts as invisible, in bytes: one that ends a colour, say, or shows the cursor.
A line is examined each time that it grows, so a longer one is shown unexamined."""

_MODE = re.compile(rb"\x1b\[\??[\d;]*[hlm]")
"""Colours and terminal modes (ECMA-48, SGR, SM and RM), which move nothing."""

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
"""Escape sequences: colours and cursor movements, titles and links (their end may be missing), the rest (ECMA-48)."""

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")

_END = re.compile(rb"\r+\n?|\n")
_RETURNS_BEFORE_END = re.compile(rb"(?<!\r)\r+\n")
"""Carriage returns before an end of line. A match begins only at the first of several: trying each one of a megabyte of
them would take minutes."""
_RETURNS_AT_START = re.compile(rb"(?m)^\r+")
"""Carriage returns that overwrite nothing: `tqdm` prints them before each state, not after it."""
_RETURNS = re.compile(rb"\r+")
_OVERWRITTEN = re.compile(rb"(?m)^.*\r")

_REDRAWN_ROWS = re.compile(rb"\r?\x1b\[2K((?:\x1b\[1A\x1b\[2K)+)")
"""The beginning of a drawing of several rows by the library rich: it erases its row, and each of those above it."""
_ROW_UP = b"\x1b[1A"


class LineCutter:
    """Cuts a stream into complete pieces: it keeps the end of the stream until that piece is complete."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    @property
    def has_unfinished(self) -> bool:
        """Whether there is an incomplete piece."""
        return self._size > 0

    def feed(self, chunk: bytes) -> bytes:
        """Add bytes, at least one; return all complete pieces, with their ends.

        Carriage returns at the very end may be the first half of an end of line, so they wait for the next byte.
        """
        complete = b""
        if self._parts and self._parts[-1].endswith(b"\r") and not chunk.startswith((b"\r", b"\n")):
            complete = self.take_unfinished()
        end = 1 + max(chunk.rfind(b"\n"), chunk.rstrip(b"\r").rfind(b"\r"))  # behind the last end of a piece, or 0
        if end:
            complete += b"".join([*self._parts, chunk[:end]])
            self._parts, self._size, chunk = [], 0, chunk[end:]
        if chunk:
            self._parts.append(chunk)
            self._size += len(chunk)
        if self._size > LINE_BYTES_MAX:
            complete += self.take_unfinished() + b"\n"
        return complete

    def unfinished(self) -> bytes:
        """Return the incomplete piece."""
        if len(self._parts) > 1:
            self._parts = [b"".join(self._parts)]
        return self._parts[0] if self._parts else b""

    def take_unfinished(self) -> bytes:
        """Return the incomplete piece, and drop it."""
        piece = self.unfinished()
        self._parts, self._size = [], 0
        return piece


class RowJoiner:
    """Joins the rows of each redrawing into one: `TerminalWriter` erases one row only, as others may own those above.

    The first drawing keeps its rows, because nothing shows yet that they will be redrawn.
    """

    def __init__(self) -> None:
        self._rows_left = 0
        """The number of missing rows of the drawing."""

    def feed(self, chunk: bytes) -> bytes:
        """Return the next bytes with the rows of each drawing joined; a drawing begins with a carriage return.

        The sequences that begin a drawing must be in one chunk; its rows may be in several.
        """
        if not self._rows_left and _ROW_UP not in chunk:
            return chunk
        parts, at = [], 0
        for found in _REDRAWN_ROWS.finditer(chunk):
            parts.append(self._join(chunk[at : found.start()]))
            parts.append(b"\r")
            self._rows_left, at = found[1].count(_ROW_UP), found.end()
        return b"".join([*parts, self._join(chunk[at:])])

    def _join(self, rows: bytes) -> bytes:
        ends = min(self._rows_left, rows.count(b"\n"))
        self._rows_left -= ends
        return rows.replace(b"\n", b"  ", ends)


def prefixed(prefix: bytes, lines: bytes) -> bytes:
    """Put a prefix before every line; `lines` ends with an end of line."""
    return b"".join((prefix, lines[:-1].replace(b"\n", b"\n" + prefix), b"\n"))


def first_piece(pieces: bytes) -> tuple[bytes, bytes]:
    """Split off the first of complete pieces, without its end: it may be the rest of a line whose start is shown."""
    end = _END.search(pieces)
    return (pieces[: end.start()], pieces[end.end() :]) if end else (pieces, b"")


def as_lines(pieces: bytes) -> bytes:
    """Convert each piece to a line, for an output that is no terminal and cannot overwrite."""
    if b"\r" not in pieces:
        return pieces
    pieces = _RETURNS_BEFORE_END.sub(b"\n", pieces)
    return _RETURNS.sub(b"\n", _RETURNS_AT_START.sub(b"", pieces))


def as_overwritten(pieces: bytes) -> tuple[bytes, bytes]:
    """Apply carriage returns as a terminal does: return the lines in their last state, and the text after them."""
    if b"\r" not in pieces:
        return pieces, b""
    pieces = _RETURNS_BEFORE_END.sub(b"\n", pieces)
    end = pieces.rfind(b"\n") + 1
    return _OVERWRITTEN.sub(b"", pieces[:end]), pieces[end:].rstrip(b"\r").rpartition(b"\r")[2]


def plain(text: str) -> str:
    """Remove colours, cursor movements and control characters from a text of one line."""
    return _CONTROLS.sub("", _ANSI.sub("", text).expandtabs())


def is_worth_showing(text: bytes) -> bool:
    """Whether the beginning of a line is to be shown: it has visible text, or is longer than `INVISIBLE_BYTES_MAX`."""
    return len(text) > INVISIBLE_BYTES_MAX or bool(plain(text.decode(errors="replace")))


def mode_switches(text: bytes) -> bytes:
    """Return the sequences of a text that switch colours and modes: they have an effect although they are invisible."""
    return b"".join(_MODE.findall(text))


_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
"""Foreground colours (ECMA-48, SGR), without red, which is for errors; those of adjacent ranks differ."""


class WorkerLabel(Struct, frozen=True):
    """The worker that printed a line."""

    rank: int
    local_rank: int
    role: str
    host: str


def make_prefix(label: WorkerLabel, template: str | None, *, several_hosts: bool, coloured: bool) -> bytes:
    """Return the prefix of a worker's lines: by default its rank, and its host if there are several.

    The template is torchrun's (`--log-line-prefix-template`), and may also use ${host}, the host name without
    its domain. As in torchrun, the line follows it at once.
    """
    if template is not None:
        values: dict[str, object] = {"role_name": label.role, "rank": label.rank, "local_rank": label.local_rank}
        values |= {"hostname": label.host, "host": _short(label.host)}
        text, gap = Template(template).safe_substitute(values), ""
    else:
        host = f"{_short(label.host)} " if several_hosts else ""
        text, gap = f"[{host}rank {label.rank}]", " "
    if coloured:
        text = f"\x1b[{_COLOURS[label.rank % len(_COLOURS)]}m{text}\x1b[0m"
    return f"{text}{gap}".encode()


def _short(host: str) -> str:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host.partition(".")[0]
    return host
