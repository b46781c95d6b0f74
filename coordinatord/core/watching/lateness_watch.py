"""The looks at when the workers of one round arrive in collectives, and what they have shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from coordinatord.core.rounds.events import NodeArrivals
from coordinatord.core.watching.lateness import Lateness, Offset, arrivals_of, better_offset, compare

AGREEING = 3
"""Looks in a row that name the same laggard, before anything is done about it."""


@dataclass(slots=True)
class LatenessWatch:
    """The looks at the workers of one round, and the offsets of the hosts' clocks."""

    known: Lateness | None = None
    """What the last look has shown; None before the first, or if it has shown too little."""
    agreeing: int = 0
    """How many looks in a row have named the present laggard."""
    _offsets: dict[str, Offset] = field(default_factory=dict)

    def clear(self) -> None:
        """Forget the workers of a round; the offsets of clocks stay."""
        self.known, self.agreeing = None, 0

    def take_in(self, answers: Sequence[NodeArrivals], step_s: float | None, now: float) -> None:
        """Take in the answers of a look."""
        before = None if self.known is None else self.known.laggard
        self._offsets = {answer.node: better_offset(self._offsets.get(answer.node), answer) for answer in answers}
        arrivals = [arrival for answer in answers for arrival in arrivals_of(answer, self._offsets[answer.node], now)]
        self.known = compare(arrivals, step_s)
        laggard = None if self.known is None else self.known.laggard
        same = laggard is not None and before is not None and laggard.node == before.node
        self.agreeing = (self.agreeing if same else 0) + (laggard is not None)
