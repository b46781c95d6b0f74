"""Decides which refusals are logged: a node that is refused for now tries again every few seconds.

A bearer of a token may also get itself refused for another reason each time. So the lines in a minute are bounded for
each token and kind of refusal.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

from coordinatord.core.rounds.effects import Refuse
from coordinatord.core.rounds.values.records import NodeJoined
from coordinatord.protocol.messages import RefusalCode
from coordinatord.store.interface import Entry

KEPT = 1_000
"""Nodes and hosts whose last refusal is remembered; beyond that, some are logged twice."""

LINES_MAX = 60
"""Lines within `WINDOW_S` about one token and one kind of refusal: one a second. Where more nodes are refused for one
reason, further lines would add nothing; the metric counts all refusals."""

WINDOW_S = 60.0


class LastLogged:
    """Remembers the last text that was logged about each of a bounded number of nodes or hosts."""

    def __init__(self) -> None:
        self._logged: OrderedDict[Hashable, str] = OrderedDict()

    def is_new(self, about: Hashable, text: str) -> bool:
        """Return whether the last text about this node or host was another one, or none; remember this one."""
        is_new = self._logged.get(about) != text
        self._logged[about] = text
        self._logged.move_to_end(about)
        if len(self._logged) > KEPT:
            self._logged.popitem(last=False)
        return is_new

    def forget(self, about: Hashable) -> None:
        """Forget the last text about this node or host, so that the next one is new."""
        self._logged.pop(about, None)


class LineBudget:
    """Counts the lines about each of a bounded number of things, at times of a monotonic clock."""

    def __init__(self) -> None:
        self._windows: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()
        """The beginning of each window, and its lines, also those that were left out."""

    def allow(self, about: Hashable, now: float) -> str | None:
        """Count one line; return what to add to it, mostly nothing, or None if it is to be left out."""
        began, lines = self._windows.pop(about, (now, 0))
        left_out = 0
        if now - began >= WINDOW_S:
            began, lines, left_out = now, 0, max(0, lines - LINES_MAX)
        self._windows[about] = (began, lines + 1)
        if len(self._windows) > KEPT:
            self._windows.popitem(last=False)
        if lines >= LINES_MAX:
            return None
        if lines == LINES_MAX - 1:
            return "; more like this is not logged for now"
        return f"; {left_out} more like this were not logged" if left_out else ""


class Refusals:
    """Decides which refusals are logged: news only, and a bounded number of lines."""

    def __init__(self) -> None:
        """Begin without a refusal."""
        self._of_nodes = LastLogged()
        """The last refusal of each node that was refused for now."""
        self.of_peers = LastLogged()
        """The last refusal by address of peers that were refused before their `Join`."""
        self._budget = LineBudget()

    def is_new(self, refuse: Refuse) -> bool:
        """Whether to log this one: it is final, or its reason differs from the last one's."""
        return not refuse.message.retry or self._of_nodes.is_new((refuse.job, refuse.node), refuse.message.message)

    def allow(self, token: str, code: RefusalCode, now: float) -> str | None:
        """Count a line about a refusal; return what to add to it, or None if there were too many."""
        return self._budget.allow((token, code), now)

    def record(self, entries: Sequence[Entry]) -> None:
        """Forget nodes that are let in: a later refusal of them is new again."""
        for entry in entries:
            if isinstance(entry.record, NodeJoined):
                self._of_nodes.forget((entry.record.job, entry.record.node))
