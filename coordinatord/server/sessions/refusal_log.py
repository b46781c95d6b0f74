"""Decides which refusals of nodes are logged, since a refused node retries every few seconds.

A repeated refusal is logged once. A node could still cause many different refusals, so the lines per minute are limited
for each token and kind of refusal.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

from coordinatord.core.rounds.effects import Refuse
from coordinatord.core.rounds.values.records import NodeJoined
from coordinatord.store.interface import Entry

SUBJECTS_MAX = 1_000
"""The limit of remembered subjects, such as nodes, addresses and tokens. Beyond it the oldest is forgotten, so some
lines are logged again."""

LINES_MAX = 60
"""The limit of lines within `WINDOW_S` about one token and one kind of refusal: one a second. The metric counts all."""

WINDOW_S = 60.0
"""The time after which lines are counted from 0 again."""


class LastLogged:
    """Remembers the last text about each node or address, so that its repetition is not logged."""

    def __init__(self) -> None:
        self._logged: OrderedDict[Hashable, str] = OrderedDict()

    def is_new(self, subject: Hashable, text: str) -> bool:
        """Return whether this text differs from the last one about a node or an address; remember it."""
        is_new = self._logged.pop(subject, None) != text
        self._logged[subject] = text
        if len(self._logged) > SUBJECTS_MAX:
            self._logged.popitem(last=False)
        return is_new

    def forget(self, subject: Hashable) -> None:
        """Forget the last text about a node or an address, so that the next one is new."""
        self._logged.pop(subject, None)


class LogThrottle:
    """Limits the log lines about each subject, such as a token; times are those of a monotonic clock."""

    def __init__(self) -> None:
        self._windows: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()
        """When each subject's window of `WINDOW_S` began, and its number of lines, logged or not."""

    def line_suffix(self, subject: Hashable, now: float) -> str | None:
        """Count a line about a subject; return a suffix for it, mostly empty, or None if it must not be logged."""
        began, lines = self._windows.pop(subject, (now, 0))
        left_out = 0
        if now - began >= WINDOW_S:
            began, lines, left_out = now, 0, max(0, lines - LINES_MAX)
        self._windows[subject] = (began, lines + 1)
        if len(self._windows) > SUBJECTS_MAX:
            self._windows.popitem(last=False)
        if lines >= LINES_MAX:
            return None
        if lines == LINES_MAX - 1:
            return "; more like this is not logged for now"
        return f"; {left_out} more like this were not logged" if left_out else ""


class RefusalLog:
    """Decides which refusals are logged: only new ones (`is_new`), and a limited number (`throttle`)."""

    def __init__(self) -> None:
        self._of_nodes = LastLogged()
        """The refusals after a `Join`, by node."""
        self.of_peers = LastLogged()
        """The refusals before a `Join`, by address. They have no `Refuse`, so the caller asks this and not `is_new`."""
        self.throttle = LogThrottle()
        """The lines about each token and kind of refusal."""

    def is_new(self, refuse: Refuse) -> bool:
        """Whether a refusal has another reason than the last one of its node; remember it.

        A final refusal always counts as new: the node does not retry.
        """
        return not refuse.message.retry or self._of_nodes.is_new((refuse.job, refuse.node), refuse.message.message)

    def on_records(self, entries: Sequence[Entry]) -> None:
        """Forget the refusals of nodes that have joined, as one of the driver's watchers."""
        for entry in entries:
            if isinstance(entry.record, NodeJoined):
                self._of_nodes.forget((entry.record.job, entry.record.node))
