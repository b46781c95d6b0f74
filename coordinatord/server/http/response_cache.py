"""Answers that show jobs, each made once for all who ask for it at the time, and no more often than the loop can spare.

One with 10,000 nodes takes tens of milliseconds and has megabytes, and people and programs ask every second. An answer
is given again until something is recorded, for a second at most; what was recorded before somebody asked, it shows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from coordinatord.server.change_signal import ChangeSignal
from coordinatord.server.driver import Driver

CHEAP_S = 0.002
"""What takes less, as a job of a few hundred nodes does, is made anew for everybody, and says how it is right then."""

SHARE = 0.1
"""Of the loop's time for making any other answer again and again, as long as that does not take more than `REST_S`."""

REST_S = 1.0
"""Between two of a kind at most: what is said of heartbeats and steps is no older, and these come once a second."""

Key = tuple[str | None, str]
"""Of which job, or of all; and encoded how."""


@dataclass(frozen=True, slots=True)
class _Made:
    body: bytes
    version: tuple[int, str | None]
    rests_until: float


class ResponseCache:
    """All answers that were made of late."""

    def __init__(self, driver: Driver, change_signal: ChangeSignal) -> None:
        self._driver = driver
        self._change_signal = change_signal
        self._made: dict[Key, _Made] = {}
        """Those that are not to be made anew as yet."""
        self._turn = asyncio.Lock()

    async def get(self, key: Key, make: Callable[[], Awaitable[bytes | None]]) -> bytes | None:
        """Return an answer that shows what is recorded by now: one that there is, or a new one, once that is due.

        None, because there is no such job, is never kept.
        """
        while True:
            async with self._turn:
                made = self._made.get(key)
                if made is None:
                    return await self._make(key, make)
                if made.version == self._version:
                    return made.body
            await asyncio.sleep(made.rests_until - self._driver.now)

    async def _make(self, key: Key, make: Callable[[], Awaitable[bytes | None]]) -> bytes | None:
        await asyncio.sleep(0)  # nodes come between two answers, even if all are asked for at once
        version = self._version
        began = time.thread_time()  # a processor that others have as well makes nothing dear
        body = await make()
        cost_s = time.thread_time() - began
        if body is not None and cost_s >= CHEAP_S:
            loop = asyncio.get_running_loop()
            rests_until = loop.time() + min(REST_S, cost_s / SHARE)
            self._made[key] = _Made(body, version, rests_until)
            loop.call_at(rests_until, self._made.pop, key, None)
        return body

    @property
    def _version(self) -> tuple[int, str | None]:
        """What changes with all that is recorded, and when nothing can be."""
        return self._change_signal.version, self._driver.machine.store_error
