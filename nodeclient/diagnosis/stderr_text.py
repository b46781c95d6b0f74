"""Prepares the end of a program's stderr for `tracebacks`, which finds the error in it. Pure.

The text is rendered as a terminal would show it, and lines that libraries have logged are told from the program's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from nodeclient.output.lines import plain

LINES_MAX = 1_000
"""How many lines to search: the cause of a program's end is near the end of its output."""

LINE_LENGTH_MAX = 4_000
"""The limit of a line in characters: no report shows more, and searching a line of a megabyte would take long."""

_RANK = re.compile(r"^(?:\[rank\d+\]:(?: |$))+")
"""torch's prefix of each line of a traceback. It is left out, because reports have the rank. torch adds it once more
with each process group."""

_NATIVE_FRAME = re.compile(
    r"""(?: \[rank\d+\]: \s? )?
        (?: frame\ \#\d+: | \#\d+\ +(?: 0x | \S.*\ from\ \S+:\d+ | \S.*\ \?\?:0 )
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
"""The beginning of a line that a library logged, which is no part of an exception's text."""

_LOGGED_ERROR = re.compile(r"(?:ERROR|CRITICAL)[: ]|\[? ?\d{4}-\d\d-\d\d[ T]\d\d:\d\d.*\b(?:ERROR|CRITICAL)\b")
"""An error that Python's logging wrote, which may have ended the program."""

_ADVICE = re.compile(
    r"usage: |(?:tip: )?(?:set|see|pass|use|try|run|for)\b.*--help|for (?:more )?(?:details|information)\b"
    r"|(?:set|see|pass|use|try|run with)\b.*\bfor (?:\w+ ){0,3}(?:details|information|trace|traceback)\.?$",
    re.IGNORECASE,
)
"""A line in which hydra, click, absl, fire or the like says how to use a program, or where to read more."""

_WARNED_SOURCE = re.compile(r"  +\S*\bwarn(?:ings\.warn|_once)?\(")
"""The line of source that Python shows below a warning."""


def last_lines(text: str) -> list[str]:
    """Return the last lines as a terminal finally shows them, without torch's prefixes and blank lines at the end."""
    lines = text.rsplit("\n", LINES_MAX)[-LINES_MAX:]
    shown = [plain(line.rstrip("\r").rpartition("\r")[2][:LINE_LENGTH_MAX]).rstrip() for line in lines]
    shown = [_RANK.sub("", line, count=1) for line in shown]
    while shown and not shown[-1]:
        shown.pop()
    return shown


def is_native_frame(line: str) -> bool:
    """Whether a line belongs to a C++ stack, which is useless to a user."""
    return _NATIVE_FRAME.match(line) is not None


def is_log_line(line: str) -> bool:
    """Whether a line was logged by a library."""
    return _LOG_LINE.match(line) is not None


def without_native_frames(lines: Iterable[str]) -> list[str]:
    """Return the lines without C++ stacks."""
    return [line for line in lines if not is_native_frame(line)]


def program_lines(lines: Iterable[str]) -> list[str]:
    """Return the lines of the program itself, and errors that were logged.

    Blank lines, C++ stacks, source below warnings, and other lines of logs are left out.
    """
    kept = (line for line in lines if line.strip() and not is_native_frame(line) and not _WARNED_SOURCE.match(line))
    return [line for line in kept if _LOGGED_ERROR.match(line) or not is_log_line(line)]


def last_statement(lines: Iterable[str]) -> str:
    """Return the last thing that a program says of its end, on one line; empty if it says nothing.

    `lines` are not blank. A line that follows a colon is joined to the line above; other indented lines are left out.
    Advice on how to use the program counts only if there is nothing else.
    """
    said: list[str] = []
    for line in lines:
        if said and said[-1].endswith(":"):
            said[-1] += f" {line.strip()}"
        elif not said or line[0] != " ":
            said.append(line.strip())
    return next((text for text in reversed(said) if not _ADVICE.match(text)), said[-1] if said else "")
