"""Decides which refusals are logged: a node that is refused for now tries again every few seconds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

from coordinatord.core.effects import Refuse
from coordinatord.core.values.records import NodeJoined
from coordinatord.store.interface import Entry

KEPT = 1_000
"""Nodes and hosts whose last refusal is remembered; beyond that, some are logged twice."""


class LastLogged:
    """Remembers the last text that was logged about each of a bounded number of nodes or hosts."""

    def __init__(self) -> None:
        self._logged: OrderedDict[Hashable, str] = OrderedDict()

    def is_new(self, about: Hashable, text: str) -> bool:
        """Whether another text, or none, was logged about them last; remember this one."""
        news = self._logged.get(about) != text
        self._logged[about] = text
        self._logged.move_to_end(about)
        if len(self._logged) > KEPT:
            self._logged.popitem(last=False)
        return news

    def forget(self, about: Hashable) -> None:
        """Let the next text about them be new."""
        self._logged.pop(about, None)


class Refusals:
    """Remembers the last refusal of each node that was refused for now."""

    def __init__(self) -> None:
        self._logged = LastLogged()

    def is_new(self, refuse: Refuse) -> bool:
        """Whether to log this one: it is final, or its reason differs from the last one's."""
        return not refuse.message.retry or self._logged.is_new((refuse.job, refuse.node), refuse.message.message)

    def note(self, entries: Sequence[Entry]) -> None:
        """Note nodes that are let in: a later refusal of them is new again."""
        for entry in entries:
            if isinstance(entry.record, NodeJoined):
                self._logged.forget((entry.record.job, entry.record.node))
