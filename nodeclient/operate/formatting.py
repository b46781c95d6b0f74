"""Formats numbers, names and tables for people. Pure."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from msgspec import Struct

from coordinatord.protocol.http.api import RestartsStatus, WorkerStartsStatus
from nodeclient.operate.terminal_info import TerminalInfo
from nodeclient.output.text_width import cut, width


def duration(seconds: float) -> str:
    """Format a duration as one short word: 0s, 59s, 3m12s, 2h03m, 4d07h."""
    whole = max(0, int(seconds))
    minutes, hours, days = whole // 60, whole // 3_600, whole // 86_400
    if days:
        return f"{days}d{hours % 24:02}h"
    if hours:
        return f"{hours}h{minutes % 60:02}m"
    return f"{minutes}m{whole % 60:02}s" if minutes else f"{whole}s"


def brief(seconds: float) -> str:
    """Format a short duration: 12.5ms, 1.9s, and from ten seconds on as `duration` does."""
    if seconds < 0.999:  # noqa: PLR2004 - above, three digits would round to 1000 ms
        return f"{1000 * seconds:.3g}ms"
    return f"{seconds:.2g}s" if seconds < 9.95 else duration(seconds)  # noqa: PLR2004 - above, it would round to 10 s


def state_age(seconds: float, *, ended: bool) -> str:
    """Format how long a state lasts, ` for 3m12s`, or how long ago it ended, ` 3m12s ago`."""
    return f" {duration(seconds)} ago" if ended else f" for {duration(seconds)}"


def budget(restarts: RestartsStatus) -> str:
    """Format the used restarts, and the budget if there is one: restarts 1 of 3, or 1 of 3 within 6h00m."""
    most = "" if restarts.max is None else f" of {restarts.max}"
    return f"restarts {restarts.used}{most}" + (f" within {duration(restarts.window_s)}" if restarts.window_s else "")


def start_ways(status: WorkerStartsStatus | None) -> str:
    """Format how workers were started: 3 in place, 1 warm. Empty if not known, or without workers."""
    if status is None:
        return ""
    ways = ((status.in_place, "in place"), (status.warm, "warm"), (status.cold, "cold"))
    return ", ".join(f"{number} {way}" for number, way in ways if number)


GAP = "  "
"""The gap between columns: no cell has two adjacent blanks, so programs can split there."""

LAST_MIN = 16
"""The least width of the last column, which has sentences, before other columns are dropped."""

NAME_MIN = 8
"""The least width of any other column when no more can be dropped."""


class Column(Struct, frozen=True):
    """One column; the last one of a table gets the rest of a line."""

    title: str
    drop_order: int = 0
    """Columns of a table that is too wide are dropped in this order, the highest first; 0 stands for never."""


def table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    terminal: TerminalInfo,
    paint: Callable[[int, str, str], str] = lambda _row, _title, cell: cell,
    indent: str = "  ",
) -> list[str]:
    """Return the lines of a table with its titles; `paint` colours a cell of a row, and the titles are row -1."""
    lines = [[column.title for column in columns], *rows]
    widths = [max(width(line[index]) for line in lines) for index in range(len(columns))]
    room = sys.maxsize if terminal.columns is None else terminal.columns - width(indent)
    kept = _fitting(columns, widths, room)
    widths = _shrunk(widths, kept, room)
    shown = []
    for number, line in enumerate(lines, start=-1):
        cells = [_cell(line[index], widths[index], is_last=index == kept[-1]) for index in kept]
        painted = [paint(number, columns[index].title, cell) for index, cell in zip(kept, cells, strict=True)]
        shown.append(f"{indent}{GAP.join(painted)}".rstrip())
    return shown


def _cell(text: str, columns: int, *, is_last: bool) -> str:
    text = cut(text, columns)
    return text if is_last else f"{text}{' ' * (columns - width(text))}"


def _total(widths: Sequence[int], kept: Sequence[int]) -> int:
    return sum(widths[index] for index in kept) + len(GAP) * (len(kept) - 1)


def _fitting(columns: Sequence[Column], widths: Sequence[int], room: int) -> list[int]:
    """Return the indices of the columns that fit if the last one is cut."""
    last = len(columns) - 1
    least = [*widths[:-1], min(widths[-1], LAST_MIN)]
    kept = list(range(len(columns)))
    for index in sorted(kept[:last], key=lambda index: -columns[index].drop_order):
        if columns[index].drop_order and _total(least, kept) > room:
            kept.remove(index)
    return kept


def _shrunk(widths: Sequence[int], kept: Sequence[int], room: int) -> list[int]:
    """Return widths that fit. First the last column shrinks, then always the widest other one, then the last again."""
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
