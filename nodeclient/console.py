"""What a person sees of a node: log lines, and on a terminal one live line that says what it waits for."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import TextIO

from coordinatord.shared.logs import LineFormatter, fields
from nodeclient.core.effects import Level

log = logging.getLogger("nodeclient")

REDRAW_S = 1.0
"""The live line counts down seconds."""

COLUMNS = 80
"""Of a terminal that does not know its own width."""

_ERASE_LINE = "\r\x1b[K"
"""Carriage return, and erase to the end of the line (ECMA-48, EL)."""

_LEVELS = {Level.INFO: logging.INFO, Level.WARNING: logging.WARNING, Level.ERROR: logging.ERROR}


class Console:
    """One node's voice. Every line carries the fields that `context` returns: job, round, node."""

    def __init__(self, level: str, context: Callable[[], dict[str, object]], stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._context = context
        self._live = self._stream.isatty()
        self._waiting: tuple[str, float | None] | None = None
        handler = _ErasingHandler(self._stream, self._take_live_line)
        handler.setFormatter(LineFormatter("nodeclient"))
        logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
        logging.getLogger("asyncio").setLevel(logging.WARNING)

    def say(self, level: Level, text: str) -> None:
        """Write one log line; what was waited for is over, or will be said again."""
        log.log(_LEVELS[level], "%s", text, extra=fields(**self._context()))

    def wait(self, reason: str, until: float | None, now: float) -> None:
        """Say what is waited for, and until when in the clock of `now`: on a terminal live, otherwise as a log line."""
        if self._live:
            self._waiting = (reason, until)
            self.redraw(now)
        else:
            limit = "" if until is None else f" (for at most {until - now:.0f} s)"
            log.info("%s%s", reason, limit, extra=fields(**self._context()))

    def redraw(self, now: float) -> bool:
        """Draw the live line anew; return whether there is one."""
        if self._waiting is None:
            return False
        reason, until = self._waiting
        limit = "" if until is None else f" ({_duration(until - now)} left)"
        try:
            # Of one row, since only one can be erased; the last column stays free, or the cursor would wrap.
            columns = (os.get_terminal_size(self._stream.fileno()).columns or COLUMNS) - 1 - len(limit)
            self._stream.write(f"{_ERASE_LINE}{reason[: max(0, columns)]}{limit}")
            self._stream.flush()
        except OSError:  # the terminal has gone, and the node goes on without it
            self._live, self._waiting = False, None
        return self._live

    def _take_live_line(self) -> bool:
        """Forget the live line; return whether there is one to be erased. What a worker has written is never erased."""
        drawn, self._waiting = self._live and self._waiting is not None, None
        return drawn


class _ErasingHandler(logging.StreamHandler[TextIO]):
    """Removes the live line, if there is one, before it writes a log line."""

    def __init__(self, stream: TextIO, take_live_line: Callable[[], bool]) -> None:
        super().__init__(stream)
        self._take_live_line = take_live_line

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        return f"{_ERASE_LINE}{line}" if self._take_live_line() else line


def _duration(seconds: float) -> str:
    minutes, rest = divmod(max(0, round(seconds)), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
