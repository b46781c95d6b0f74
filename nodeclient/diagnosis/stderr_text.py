"""What a program wrote, as lines that a person would read, and which of them a library has written.

Pure. What a traceback looks like is in `tracebacks`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from nodeclient.output.lines import plain

LINES_MAX = 1_000
"""How many lines are looked through: the cause of a program's end is near the end of its output."""

LINE_LENGTH_MAX = 4_000
"""The length of a line in characters: no report shows more, and a line of a megabyte would take long to look
through."""

_RANK = re.compile(r"\[rank\d+\]:(?: |$)")
"""The prefix that torch puts before each line of a traceback once a process group exists; the rank is known without
it."""

_NATIVE_FRAME = re.compile(
    r"""(?: \[rank\d+\]: \s? )?
        (?: frame\ \#\d+: | \#\d+\ +(?: 0x | \S+.*\ from\ \S+:\d+ | \S+.*\ \?\?:0 )
          | Exception\ raised\ from\ .*\(most\ recent\ call\ first\): | <omitting\ python\ frames>
          | C\+\+\ CapturedTraceback: )""",
    re.VERBOSE,
)
"""Lines of the stack that torch prints below its own C++ errors."""

_LOG_LINE = re.compile(
    r"""(?: \[rank\d+\]: \s? )?
        (?: \[ [WEIF] \d{3,4}\  \d\d:\d\d:\d\d      # torch's C++ log: [W1121 12:25:20.668433781 socket.cpp:764]
          | \[ [WEIF]\  \S+\.cpp:\d+ \]             # the same before torch 2.3
          | [WEIF] \d{4}\  \d\d:\d\d:\d\d           # torch's Python log, glog
          | \[? \d{4}-\d\d-\d\d [ T] \d\d:\d\d      # Python's logging with a time
          | (?: DEBUG | INFO | WARNING | ERROR | CRITICAL ) [: ]
          | \S+ \.py : \d+ : \  \w*Warning: | \ \ warnings\.warn\(
          | wandb:\  | \S+ : \d+ : \d+ \  \[\d+\] \  (?: NCCL | \S+ \  NCCL )\  )""",
    re.VERBOSE,
)
"""Beginnings of lines that a library logged; they are no part of an exception's text."""

_LOGGED_ERROR = re.compile(r"(?:ERROR|CRITICAL)[: ]|\[? ?\d{4}-\d\d-\d\d[ T]\d\d:\d\d\S*.*\b(?:ERROR|CRITICAL)\b")
"""An error that Python's logging wrote; its program may have ended because of it."""

_WARNED_SOURCE = re.compile(r"  +\S*\bwarn(?:ings\.warn|_once)?\(")
"""The line of source below a warning that issued it."""


def last_lines(text: str) -> list[str]:
    """Return the last lines as a terminal would show them in the end, without trailing blank ones and torch's ranks."""
    lines = text.rsplit("\n", LINES_MAX)[-LINES_MAX:]
    shown = [plain(line.rstrip("\r").rpartition("\r")[2][:LINE_LENGTH_MAX]).rstrip() for line in lines]
    shown = [_RANK.sub("", line, count=1) if _RANK.match(line) else line for line in shown]
    while shown and not shown[-1]:
        shown.pop()
    return shown


def is_native_frame(line: str) -> bool:
    """Whether a line belongs to a stack of C++, which tells a user nothing."""
    return _NATIVE_FRAME.match(line) is not None


def is_log_line(line: str) -> bool:
    """Whether a line was logged by a library."""
    return _LOG_LINE.match(line) is not None


def without_native_frames(lines: Iterable[str]) -> list[str]:
    """Return the lines except stacks of C++."""
    return [line for line in lines if not is_native_frame(line)]


def own_lines(lines: Iterable[str]) -> list[str]:
    """Return the lines of the program itself: no blank lines, no stacks of C++, and of log lines only errors."""
    kept = (line for line in lines if line.strip() and not is_native_frame(line) and not _WARNED_SOURCE.match(line))
    return [line for line in kept if _LOGGED_ERROR.match(line) or not is_log_line(line)]


def gibibytes(size: int) -> str:
    """Return a text with a size in memory."""
    number, unit = (size / 2**30, "GiB") if size >= 2**30 else (size / 2**20, "MiB")
    return f"{number:.0f} {unit}" if number >= 100 else f"{number:.3g} {unit}"  # noqa: PLR2004  # three digits
