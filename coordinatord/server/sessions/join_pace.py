"""Bounds how often a node may join: one that joins again and again must not keep the coordinator busy."""

from __future__ import annotations

from collections import OrderedDict

JOINS_AT_ONCE = 30
"""How often a node may join within a moment: a nodeclient waits at least 50 ms before it tries again, so these last for
1.5 s in a network that breaks each connection at once."""

JOINS_PER_S = 2.0
"""How often it may join after that. A nodeclient whose sessions do not last joins about once a second."""

NODES_MAX = 20_000
"""The number of nodes that are remembered; the one that joined longest ago is forgotten."""

Joiner = tuple[str, str, str]
"""The token, the job and the node: with another token nobody can use up what a node has."""


class JoinPace:
    """Counts the joins of each node."""

    def __init__(self) -> None:
        self._left: OrderedDict[Joiner, tuple[float, float]] = OrderedDict()
        """The joins that were left to each, and when that was."""

    def allows(self, joiner: Joiner, now: float) -> bool:
        """Return whether a node may join at `now`, in seconds of a monotonic clock, and count the join if so."""
        left, since = self._left.pop(joiner, (float(JOINS_AT_ONCE), now))
        left = min(JOINS_AT_ONCE, left + (now - since) * JOINS_PER_S)
        allowed = left >= 1
        self._left[joiner] = (left - allowed, now)
        if len(self._left) > NODES_MAX:
            self._left.popitem(last=False)
        return allowed
