"""Warns the user of trouble with the disk once, though each further attempt meets it again."""

from __future__ import annotations

from collections.abc import Callable

from nodeclient.core.effects import Level

Notify = Callable[[Level, str, str], None]
"""Shows the user a line: its log level, the text, and the name of the event."""


class Complaints:
    """Warns the user of trouble with the disk, and of nothing twice in a row."""

    def __init__(self, notify: Notify) -> None:
        self._notify = notify
        self._last = ""
        """The last warning; empty if the disk has worked since."""

    def complain(self, text: str) -> None:
        """Warn the user, unless the last warning gave the same reason: the text after the first `: `.

        The text before it may name another step.
        """
        if text.partition(": ")[2] != self._last.partition(": ")[2] or not self._last:
            self._notify(Level.WARNING, text, "state_not_persisted")
        self._last = text

    def forget(self) -> None:
        """Forget the last warning because the disk works, so that the next one is shown even if it is the same."""
        self._last = ""
