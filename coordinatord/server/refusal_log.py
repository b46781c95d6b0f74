"""Which refusals are worth a line in the log: a node that is turned away for now asks again every few seconds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from coordinatord.core.effects import Refuse
from coordinatord.core.values.records import NodeJoined, Record

KEPT = 1_000
"""Nodes that are remembered to have been turned away; of more, some are said twice."""


class Refusals:
    """Knows what was said of nodes that were turned away for now."""

    def __init__(self) -> None:
        self._said: OrderedDict[tuple[str, str], str] = OrderedDict()
        """By job and node."""

    def is_news(self, refuse: Refuse) -> bool:
        """Whether to say this one: for good, or for now and for another reason than when it was last said."""
        key, text = (refuse.job, refuse.node), refuse.message.message
        if not refuse.message.retry:
            return True
        news = self._said.get(key) != text
        self._said[key] = text
        self._said.move_to_end(key)
        if len(self._said) > KEPT:
            self._said.popitem(last=False)
        return news

    def note(self, records: Sequence[Record], _: float) -> None:
        """Take note of nodes that are let in: if one is turned away after that, it is news again."""
        for record in records:
            if isinstance(record, NodeJoined):
                self._said.pop((record.job, record.node), None)
