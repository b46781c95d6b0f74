"""Shows the user what a node does: log lines, reports, and on a terminal a live line that says why the node waits.

With `--log-format json` there are only log lines.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime

from coordinatord.hints.failure_status import failure_status
from coordinatord.protocol.messages import Report
from coordinatord.runtime.logs import STDERR, fields, install, leads_to_journal, level_number, prioritized
from nodeclient.core import notices
from nodeclient.core.effects import Level, Waiting
from nodeclient.diagnosis import report_text
from nodeclient.output.output import Terminal
from nodeclient.output.text_width import beginning

log = logging.getLogger("nodeclient")

REDRAW_S = 1.0
"""The time between two drawings of the live line, which counts down seconds."""


class Console:
    """Shows one node to its user."""

    def __init__(self, level: str, form: str, context: Callable[[], dict[str, object]], terminal: Terminal) -> None:
        """Write to a terminal or a file; `form` is the `--log-format`.

        Log lines that do not go to a terminal carry the fields that `context` returns: job, node and round.
        """
        self._terminal = terminal
        self._for_machines = form == "json"
        self._context = context
        self._waiting: Waiting | None = None
        """The wait that the live line shows; None without a live line."""
        self._redrawing: asyncio.TimerHandle | None = None
        self.waiting_for = notices.SEARCHING
        """What the node waits for, or waited for last."""
        install(_Handler(terminal, self._forget_wait), level, "nodeclient", form)
        logging.getLogger("asyncio").setLevel(logging.WARNING)  # at `debug` it tells of its own work only

    def notify(self, level: Level, text: str, event: str, **more: object) -> None:
        """Write one log line, and erase the live line; `more` are fields for machines only."""
        self._log(level_number(level), text, event, **(more if self._for_machines else {}))
        if self._waiting is not None:  # still there: `--log-level` left the log line out
            self._forget_wait()
            self._terminal.draw("")

    def show(self, report: Report, seen_at: datetime) -> None:
        """Show why a round failed, in a block of lines, or in one log line for machines."""
        if self._for_machines:
            facts = report_text.log_fields(report)
            self._log(logging.ERROR, f"round {report.round} failed", "round_failed", **facts)
        else:
            self._waiting = None
            text = "\n".join(report_text.lines(failure_status(report), seen_at))
            self._terminal.write_lines(prioritized(text, logging.ERROR) if leads_to_journal(STDERR) else text)

    def follow(self, waiting: Waiting) -> None:
        """Show what the node waits for, and redraw the live line every `REDRAW_S` until something else is shown."""
        loop, self.waiting_for = asyncio.get_running_loop(), waiting.reason
        self.show_wait(waiting, loop.time())
        if self._redrawing is not None:
            self._redrawing.cancel()
        self._redrawing = loop.call_later(REDRAW_S, self._redraw_on)

    def _redraw_on(self) -> None:
        loop = asyncio.get_running_loop()
        if self.redraw(loop.time()):
            self._redrawing = loop.call_later(REDRAW_S, self._redraw_on)

    def show_wait(self, waiting: Waiting, now: float) -> None:
        """Show what the node waits for, in the live line or in a log line; `now` is the agent's clock."""
        if self._terminal.is_live and not self._for_machines:
            self._waiting = waiting
            self.redraw(now)
        else:
            limit = ""
            if waiting.until is not None:
                left = f"{waiting.until - now:.0f} s"
                goes_on = f"; the workers go on, and stop in {left} if it is not back"
                limit = goes_on if waiting.working else f" (for at most {left})"
            self._log(level_number(waiting.level), f"{waiting.reason}{limit}", "waiting")

    def redraw(self, now: float) -> bool:
        """Draw the live line anew; return whether there is one."""
        if self._waiting is None or not self._terminal.is_live:
            return False
        reason, limit = self._waiting.reason, ""
        if self._waiting.until is not None:
            left = _duration(self._waiting.until - now)
            limit = f" (workers stop in {left})" if self._waiting.working else f" ({left} left)"
        # Only one row can be erased. The last column stays free, or the cursor would wrap.
        room = self._terminal.columns() - 1 - len(limit)
        self._terminal.draw(f"{beginning(reason, room)}{limit}")
        return True

    def _log(self, level: int, text: str, event: str, **more: object) -> None:
        context = self._context() if self._for_machines or not self._terminal.is_live else {}
        log.log(level, "%s", text, extra=fields(event, **{**context, **more}))

    def _forget_wait(self) -> None:
        self._waiting = None


class _Handler(logging.Handler):
    """Writes log lines to the terminal, and erases the live line."""

    def __init__(self, terminal: Terminal, forget_wait: Callable[[], None]) -> None:
        super().__init__()
        self._terminal = terminal
        self._forget_wait = forget_wait

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        self._forget_wait()
        self._terminal.write_lines(line)


def _duration(duration_s: float) -> str:
    minutes, seconds = divmod(max(0, round(duration_s)), 60)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
