"""Timers: one for all deadlines of a pure machine, and one for many things that wait equally long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar


class DeadlineTimer:
    """Calls back at the armed time. The clock reading that it passes is never before that time.

    uvloop fires up to half a millisecond early (measured: 132 of 300 timers). A machine that is called that early finds
    nothing due, and would be called again and again.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[float], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._handle: asyncio.TimerHandle | None = None
        self._at: float | None = None

    def arm(self, at: float | None) -> None:
        """Set the time of the next call, by the loop's clock, in place of any time set before. None: do not call."""
        if at == self._at:
            return
        self._at = at
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if at is not None:
            self._handle = self._loop.call_at(at, self._fire, at)

    def _fire(self, at: float) -> None:
        self._handle = self._at = None
        self._callback(max(at, self._loop.time()))


Waiting = TypeVar("Waiting", bound=Hashable)


class Patience(Generic[Waiting]):
    """Gives up what has not happened in time: the oldest first, each thing after the same number of seconds.

    One timer is enough for all of them.
    """

    def __init__(self, seconds: float, give_up: Callable[[Waiting], None]) -> None:
        """Wait `seconds` for each thing, and then call `give_up` with it."""
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._give_up = give_up
        self._until: dict[Waiting, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._until)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._until)

    def add(self, waiting: Waiting) -> None:
        """Begin to wait for something."""
        self._until[waiting] = self._loop.time() + self._seconds
        if self._timer is None:
            self._arm()

    def discard(self, waiting: Waiting) -> bool:
        """Wait for something no longer; return whether it was waited for."""
        return self._until.pop(waiting, None) is not None

    def give_up_oldest(self) -> None:
        """Give up what has waited longest, if anything waits."""
        for waiting in self._until:
            del self._until[waiting]
            self._give_up(waiting)
            return

    def give_up_older(self, seconds: float) -> None:
        """Give up what has waited for longer than so many seconds."""
        latest = self._loop.time() + self._seconds - seconds
        while self._until and next(iter(self._until.values())) < latest:
            self.give_up_oldest()

    def close(self) -> None:
        """Forget all that waits, and set no timer again."""
        self._until.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        self._timer = self._loop.call_at(next(iter(self._until.values())), self._look) if self._until else None

    def _look(self) -> None:
        now = self._loop.time()
        while self._until and next(iter(self._until.values())) <= now:
            self.give_up_oldest()
        self._arm()
