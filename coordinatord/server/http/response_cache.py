"""Caches answers that show jobs: each is made once for all who request it, as often as the loop can afford.

An answer with 10,000 nodes takes tens of milliseconds and megabytes, and clients may request it every second. It
is reused until something is recorded, for a second at most; it always shows what was recorded before the request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from coordinatord.protocol.frozen_class import frozen
from coordinatord.server.driver import Driver
from coordinatord.server.reads.change_signal import ChangeSignal

CHEAP_S = 0.002
"""A cheaper answer, such as a job of a few hundred nodes, is made anew for every request, so it is always up to
date."""

SHARE = 0.1
"""The share of the loop's time for making any other answer again and again, unless it would wait longer than
`REST_S`."""

REST_S = 1.0
"""The longest age of an answer: heartbeats and steps come once a second."""

Key = tuple[str | None, str, str]
"""The job, or None for all jobs that match a pattern; this pattern; and the encoding."""


@frozen
class _Made:
    body: bytes
    version: tuple[int, str | None]
    rests_until: float


class ResponseCache:
    """All answers that were made recently."""

    def __init__(self, driver: Driver, change_signal: ChangeSignal) -> None:
        self._driver = driver
        self._change_signal = change_signal
        self._made: dict[Key, _Made] = {}
        """The answers that are not due to be made anew."""
        self._turn = asyncio.Lock()

    async def get(self, key: Key, make: Callable[[], Awaitable[bytes | None]]) -> bytes | None:
        """Return an answer that shows everything recorded by now: an existing one, or a new one once that is due.

        None, for a job that does not exist, is never kept.
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
        await asyncio.sleep(0)  # nodes come between two answers, even if all are requested at once
        version = self._version
        began = time.thread_time()  # processor time, since other programs may use the processor as well
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
        """Return a value that changes with every record, and when the store fails."""
        return self._change_signal.version, self._driver.machine.store_error
