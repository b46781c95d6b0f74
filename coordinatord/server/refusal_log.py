"""Which refusals are worth a line in the log: a node that is turned away for now asks again every few seconds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

from coordinatord.core.effects import Refuse
from coordinatord.core.values.records import NodeJoined, Record

KEPT = 1_000
"""Of whom it is remembered what was said of them; of more, some is said twice."""


class LastSaid:
    """Knows what was last said of each of a bounded number of nodes or hosts."""

    def __init__(self) -> None:
        self._said: OrderedDict[Hashable, str] = OrderedDict()

    def is_news(self, about: Hashable, text: str) -> bool:
        """Whether something else, or nothing, was last said of them; from now on this was."""
        news = self._said.get(about) != text
        self._said[about] = text
        self._said.move_to_end(about)
        if len(self._said) > KEPT:
            self._said.popitem(last=False)
        return news

    def forget(self, about: Hashable) -> None:
        """Let whatever is said of them next be news."""
        self._said.pop(about, None)


class Refusals:
    """Knows what was said of nodes that were turned away for now."""

    def __init__(self) -> None:
        self._said = LastSaid()

    def is_news(self, refuse: Refuse) -> bool:
        """Whether to say this one: for good, or for now and for another reason than when it was last said."""
        return not refuse.message.retry or self._said.is_news((refuse.job, refuse.node), refuse.message.message)

    def note(self, records: Sequence[Record], _: float) -> None:
        """Take note of nodes that are let in: if one is turned away after that, it is news again."""
        for record in records:
            if isinstance(record, NodeJoined):
                self._said.forget((record.job, record.node))
