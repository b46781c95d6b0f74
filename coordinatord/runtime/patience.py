"""Gives up what has not happened in time. All things have equally long, so one timer is enough for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

Waiting = TypeVar("Waiting", bound=Hashable)


class Patience(Generic[Waiting]):
    """The things that are waited for, the oldest first; each of them for the same number of seconds."""

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
