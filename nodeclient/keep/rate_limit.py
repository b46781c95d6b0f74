"""How fast copies may come, so that they leave the network and the processors to the training."""

from __future__ import annotations

BURST_S = 0.1
"""How many seconds' worth of bytes may come at once after a pause."""


class RateLimit:
    """A token bucket. It is empty at first; the caller passes the time, in seconds of a clock that never goes back."""

    def __init__(self, rate: float, now: float) -> None:
        """Allow `rate` bytes a second."""
        self._rate = rate
        self._spent_at = now
        """When all bytes so far would have come at exactly this rate."""

    def take(self, size: int, now: float) -> float:
        """Count bytes that have come; return how many seconds to wait before more may come."""
        self._spent_at = max(self._spent_at, now - BURST_S) + size / self._rate
        return max(0.0, self._spent_at - now)
