"""Tables of texts: aligned in whole for programs and files, fitted to the width of a terminal for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coordinatord.protocol.frozen_class import frozen
from nodeclient.operate.terminal_info import TerminalInfo, cut, width

GAP = "  "
"""The gap between columns: no cell has two blanks in a row, so programs can split there."""

LAST_MIN = 16
"""The least width of the last column, which has sentences, before other columns are left out."""

NAME_MIN = 8
"""The least width of any other column when no more can be left out."""


@frozen
class Column:
    """One column; the last one of a table takes what is left of a line."""

    title: str
    gives_way: int = 0
    """If a table is too wide, the column with the highest number is left out first; a column with 0 never is."""


def table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    terminal: TerminalInfo,
    paint: Callable[[int, str, str], str] = lambda _row, _title, cell: cell,
    indent: str = "  ",
) -> list[str]:
    """Return the lines of a table with its titles; `paint` colours a cell of a row, the titles being row -1."""
    kept = list(range(len(columns)))
    lines = [[column.title for column in columns], *rows]
    widths = [max(width(line[index]) for line in lines) for index in range(len(columns))]
    room = None if terminal.columns is None else terminal.columns - width(indent)
    if room is not None:
        kept = _fitting(columns, widths, room)
        widths = _shrunk(widths, kept, room)
    shown = []
    for number, line in enumerate(lines, start=-1):
        cells = [_cell(line[index], widths[index], terminal, is_last=index == kept[-1]) for index in kept]
        painted = [paint(number, columns[index].title, cell) for index, cell in zip(kept, cells, strict=True)]
        shown.append(f"{indent}{GAP.join(painted)}".rstrip())
    return shown


def _cell(text: str, columns: int, terminal: TerminalInfo, *, is_last: bool) -> str:
    if terminal.columns is not None:
        text = cut(text, columns)
    return text if is_last else f"{text}{' ' * (columns - width(text))}"


def _total(widths: Sequence[int], kept: Sequence[int]) -> int:
    return sum(widths[index] for index in kept) + len(GAP) * (len(kept) - 1)


def _fitting(columns: Sequence[Column], widths: Sequence[int], room: int) -> list[int]:
    """Return the indices of the columns that fit if the last one is cut."""
    last = len(columns) - 1
    least = [*widths[:-1], min(widths[-1], LAST_MIN)]
    kept = list(range(len(columns)))
    for index in sorted(kept[:last], key=lambda index: -columns[index].gives_way):
        if columns[index].gives_way and _total(least, kept) > room:
            kept.remove(index)
    return kept


def _shrunk(widths: Sequence[int], kept: Sequence[int], room: int) -> list[int]:
    """Return widths that fit: the last column shrinks first, then the widest of the others, again and again."""
    shrunk = list(widths)
    last = kept[-1]
    excess = _total(shrunk, kept) - room
    shrunk[last] -= max(0, min(excess, shrunk[last] - LAST_MIN))
    while (excess := _total(shrunk, kept) - room) > 0:
        widest = max(kept[:-1], key=lambda index: shrunk[index], default=last)
        if shrunk[widest] <= NAME_MIN:
            widest = last
        if shrunk[widest] <= 1:
            break
        shrunk[widest] -= 1
    return shrunk
