"""Which refusals are worth a line in the log: a node that is turned away for now asks again every few seconds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

from coordinatord.core.effects import Refuse
from coordinatord.core.values.records import NodeJoined, Record

KEPT = 1_000
"""Of whom it is remembered what was said of them; of more, some is said twice."""


class LastLogged:
    """Knows what was last said of each of a bounded number of nodes or hosts."""

    def __init__(self) -> None:
        self._logged: OrderedDict[Hashable, str] = OrderedDict()

    def is_new(self, about: Hashable, text: str) -> bool:
        """Whether something else, or nothing, was last said of them; from now on this was."""
        news = self._logged.get(about) != text
        self._logged[about] = text
        self._logged.move_to_end(about)
        if len(self._logged) > KEPT:
            self._logged.popitem(last=False)
        return news

    def forget(self, about: Hashable) -> None:
        """Let whatever is said of them next be news."""
        self._logged.pop(about, None)


class Refusals:
    """Knows what was said of nodes that were turned away for now."""

    def __init__(self) -> None:
        self._logged = LastLogged()

    def is_new(self, refuse: Refuse) -> bool:
        """Whether to say this one: for good, or for now and for another reason than when it was last said."""
        return not refuse.message.retry or self._logged.is_new((refuse.job, refuse.node), refuse.message.message)

    def note(self, records: Sequence[Record], _: float) -> None:
        """Take note of nodes that are let in: if one is turned away after that, it is news again."""
        for record in records:
            if isinstance(record, NodeJoined):
                self._logged.forget((record.job, record.node))
