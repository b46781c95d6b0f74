"""The times in which the coordinator could not record, and so not decide: they must count against no node.

Meanwhile nodes receive no new goals, and newcomers are refused, so no other node can complete the round.
"""

from __future__ import annotations

from coordinatord.core.rounds.events import Event, StoreFailed, StoreRecovered


class StoreOutages:
    """The spans of one world in which nothing could be recorded, in the queue's `now`."""

    def __init__(self) -> None:
        self.last_at = -1.0
        """When the coordinator last could not decide."""
        self.over_at: float | None = None
        """When it last could decide again in this life; None if it always could."""
        self._spans: list[tuple[float, float]] = []
        self._since: float | None = None

    def note_event(self, event: Event, now: float, *, troubled: bool) -> None:
        """Note an event that the coordinator is about to handle, and whether it is degraded already."""
        if not troubled and not isinstance(event, StoreFailed):
            return
        self.last_at = self.over_at = now
        if isinstance(event, StoreRecovered):
            self._close(now)
        elif self._since is None:
            self._since = now

    def end(self, now: float) -> None:
        """Note that the coordinator has died: the next life begins with a store that works."""
        self._close(now)
        self.over_at = None

    def _close(self, now: float) -> None:
        if self._since is not None:
            self._spans.append((self._since, now))
            self._since = None

    def untroubled_s(self, since: float, now: float) -> float:
        """Return how many seconds of those from `since` to `now` the coordinator could decide in."""
        spans = self._spans if self._since is None else [*self._spans, (self._since, now)]
        return now - since - sum(max(0.0, end - max(begin, since)) for begin, end in spans)
