"""Warns the user of trouble with the disk once, and not again at each further attempt."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

from nodeclient.core.effects import Level

Notify = Callable[[Level, str, str], None]
"""Shows the user a line: its log level, the text, and the name of the event."""


class Work(Enum):
    """The kinds of work on the disk. One may succeed while another fails."""

    LOCK = auto()
    SCAN = auto()
    WRITE = auto()
    COMMIT = auto()
    DELETE = auto()


class Complaints:
    """Warns the user of trouble with the disk, but never twice in a row for the same kind of work and reason."""

    def __init__(self, notify: Notify) -> None:
        self._notify = notify
        self._last: dict[Work, str] = {}
        """The reason of the last warning about each kind of work, until that work succeeds."""

    def complain(self, work: Work, text: str) -> None:
        """Warn the user, unless the last warning gave the same reason.

        The reason is the text after the first `: `, since the text before it may name another step.
        """
        reason = text.partition(": ")[2]
        if self._last.get(work) != reason:
            self._notify(Level.WARNING, text, "state_not_persisted")
        self._last[work] = reason

    def forget(self, work: Work) -> None:
        """Forget the last warning because this work has succeeded, so that the same one is shown again."""
        self._last.pop(work, None)
