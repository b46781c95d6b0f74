"""Simulated time: all events of a world in one order. Nothing here waits, and nothing here is random.

There are two times. All clocks of the world go by `now`. `time` also counts the quiet stretches that were skipped,
which no clock has seen: see `idle_skip`. Consequences are queued in `now` (`after`). Events from outside, such as a
fault or the end of the training, are planned in `time` (`plan`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Act = Callable[..., object]
Item = tuple[float, int, Act, tuple[Any, ...]]


class EventQueue:
    """The calls that are to be made."""

    def __init__(self) -> None:
        self.now = 0.0
        self.skipped = 0.0
        """Seconds of `time` that no clock has seen."""
        self.events = 0
        """How many calls were made."""
        self._soon: list[Item] = []
        self._planned: list[Item] = []
        self._order = 0
        """The number of the last entry: of entries with the same time, the first one comes first."""

    @property
    def time(self) -> float:
        """The time since the beginning, for an outside observer."""
        return self.now + self.skipped

    @property
    def next_planned(self) -> float:
        """The `time` of the next event from outside; infinite if there is none."""
        return self._planned[0][0] if self._planned else math.inf

    def after(self, seconds: float, act: Act, *arguments: Any) -> None:
        """Schedule a call in so many seconds from now."""
        self._order += 1
        heappush(self._soon, (self.now + seconds, self._order, act, arguments))

    def plan(self, seconds: float, act: Act, *arguments: Any) -> None:
        """Schedule a call from outside in so many seconds from now."""
        self._order += 1
        heappush(self._planned, (self.time + seconds, self._order, act, arguments))

    def run(self, end: float, done: Callable[[], bool] | None = None) -> bool:
        """Make all calls up to `end`, in `time`, or until `done()`; return whether that was true."""
        soon, planned = self._soon, self._planned
        while done is None or not done():
            at = soon[0][0] + self.skipped if soon else math.inf
            if planned and planned[0][0] <= at:
                if planned[0][0] > end:
                    break
                when, _, act, arguments = heappop(planned)
                self.now = max(self.now, when - self.skipped)
            elif at <= end:
                self.now, _, act, arguments = heappop(soon)
            else:
                break
            self.events += 1
            act(*arguments)
        else:
            return True
        self.now = max(self.now, end - self.skipped)
        return False

    def skip(self, seconds: float) -> None:
        """Skip some time, which no clock sees."""
        self.skipped += seconds


class Clock:
    """A monotonic clock with an offset, which is a little fast or slow."""

    def __init__(self, queue: EventQueue, offset: float = 0.0, rate: float = 1.0) -> None:
        self._queue = queue
        self.offset = offset
        self.rate = rate

    def read(self) -> float:
        """Return the reading of the clock."""
        return self.offset + self.rate * self._queue.now

    def wait_for(self, reading: float) -> float:
        """Return in how many seconds of the queue the clock will show this; 0 if it has passed."""
        # A little more, so that the clock has the reading in spite of rounding.
        return max(0.0, (reading - self.offset) / self.rate - self._queue.now + 1e-8)


class Alarm:
    """A timer on one clock, as each daemon has; arming it again costs little if nothing has changed."""

    def __init__(
        self, queue: EventQueue, clock: Clock, due: Callable[[], float | None], ring: Callable[[], None]
    ) -> None:
        """Begin unset; `due` returns the reading at which `ring` is to be called."""
        self._queue, self._clock, self._due, self._ring = queue, clock, due, ring
        self._set_for = math.inf

    def arm(self) -> None:
        """Set the timer for the next deadline."""
        due = self._due()
        if due is not None:
            wait = self._clock.wait_for(due)
            at = self._queue.now + wait
            if at < self._set_for:
                self._set_for = at
                self._queue.after(wait, self._go_off, at)

    def _go_off(self, at: float) -> None:
        if at != self._set_for:
            return  # the timer was set for an earlier time since
        self._set_for = math.inf
        due = self._due()
        if due is not None and due <= self._clock.read():
            self._ring()
        else:
            self.arm()
