"""What a person sees of a node: log lines, and on a terminal one live line that says what it waits for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from coordinatord.shared.logs import LineFormatter, fields
from nodeclient.core.effects import Level

log = logging.getLogger("nodeclient")

REDRAW_S = 1.0
"""The live line counts down seconds."""

_LEVELS = {Level.INFO: logging.INFO, Level.WARNING: logging.WARNING, Level.ERROR: logging.ERROR}


class Voice(Protocol):
    """Where the words go; `nodeclient.output.terminal` has one that shares the terminal with workers."""

    @property
    def is_live(self) -> bool:
        """Whether a live line can be drawn and erased."""

    def columns(self) -> int:
        """Return the width of the terminal."""

    def write_lines(self, text: str) -> None:
        """Write lines, without the last one's end, below the live line's place."""

    def draw(self, text: str) -> None:
        """Draw the live line anew."""


class Console:
    """One node's voice. Every line carries the fields that `context` returns: job, round, node."""

    def __init__(self, level: str, context: Callable[[], dict[str, object]], voice: Voice) -> None:
        self._voice = voice
        self._context = context
        self._waiting: tuple[str, float | None] | None = None
        handler = _Handler(voice, self._forget_wait)
        handler.setFormatter(LineFormatter("nodeclient"))
        logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
        logging.getLogger("asyncio").setLevel(logging.WARNING)

    def say(self, level: Level, text: str) -> None:
        """Write one log line; what was waited for is over, or will be said again."""
        log.log(_LEVELS[level], "%s", text, extra=fields(**self._context()))

    def show(self, lines: Sequence[str]) -> None:
        """Write plain lines that belong together."""
        self._waiting = None
        self._voice.write_lines("\n".join(lines))

    def wait(self, reason: str, until: float | None, now: float) -> None:
        """Say what is waited for, and until when in the clock of `now`: on a terminal live, otherwise as a log line."""
        if self._voice.is_live:
            self._waiting = (reason, until)
            self.redraw(now)
        else:
            limit = "" if until is None else f" (for at most {until - now:.0f} s)"
            log.info("%s%s", reason, limit, extra=fields(**self._context()))

    def redraw(self, now: float) -> bool:
        """Draw the live line anew; return whether there is one."""
        if self._waiting is None or not self._voice.is_live:
            return False
        reason, until = self._waiting
        limit = "" if until is None else f" ({_duration(until - now)} left)"
        # Of one row, since only one can be erased; the last column stays free, or the cursor would wrap.
        room = self._voice.columns() - 1 - len(limit)
        self._voice.draw(f"{reason[: max(0, room)]}{limit}")
        return True

    def _forget_wait(self) -> None:
        self._waiting = None


class _Handler(logging.Handler):
    """Hands log lines to the voice; what was waited for is not drawn any more."""

    def __init__(self, voice: Voice, forget_wait: Callable[[], None]) -> None:
        super().__init__()
        self._voice = voice
        self._forget_wait = forget_wait

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        self._forget_wait()
        self._voice.write_lines(line)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(max(0, round(seconds)), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
