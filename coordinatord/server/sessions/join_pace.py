"""How often a node may join: one that comes again and again, with a valid token, must not keep everybody else busy."""

from __future__ import annotations

from collections import OrderedDict

JOINS_AT_ONCE = 30
"""How often a node may come within a moment: a nodeclient waits at least 50 ms before it tries again, so these are for
1.5 s of a network that breaks each connection at once."""

JOINS_PER_S = 2.0
"""How often it may come after that. A nodeclient whose sessions do not last comes about once a second."""

NODES_MAX = 20_000
"""The number of nodes that are remembered; the one that came longest ago is forgotten."""

Who = tuple[str, str, str]
"""The token, the job and the node: with another token nobody can use up what a node has."""


class JoinPace:
    """Counts the joins of each node."""

    def __init__(self) -> None:
        self._left: OrderedDict[Who, tuple[float, float]] = OrderedDict()
        """How many joins were left to whom, and when that was."""

    def allows(self, who: Who, now: float) -> bool:
        """Whether this one may join now, at `now` in seconds of a clock that only grows; count it if so."""
        left, since = self._left.pop(who, (float(JOINS_AT_ONCE), now))
        left = min(JOINS_AT_ONCE, left + (now - since) * JOINS_PER_S)
        allowed = left >= 1
        self._left[who] = (left - allowed, now)
        if len(self._left) > NODES_MAX:
            self._left.popitem(last=False)
        return allowed
