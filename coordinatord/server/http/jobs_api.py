"""Serves the coordinator's health and the state of jobs, without changing anything."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial

from aiohttp import web
from msgspec import Struct

from coordinatord.core.shown.job_view import describe_silent_jobs, drained_view, job_view, whole_view
from coordinatord.protocol.http.api import IN_LIST, HealthAnswer, JobsAnswer, LivenessAnswer, SharedStatus
from coordinatord.protocol.schema import plain_without
from coordinatord.runtime import __version__
from coordinatord.security.gatekeeper import Caller
from coordinatord.security.token_store import ALL_JOBS
from coordinatord.server.driver import Driver, iterate_jobs
from coordinatord.server.http.responses import UnknownJobError, encoded, respond, wanted
from coordinatord.server.reads.change_signal import ChangeSignal
from coordinatord.server.reads.rounds_reader import RoundsReader
from coordinatord.server.sessions.connections import CALLER

CHEAP_S = 0.002
"""A cheaper answer, such as a job of a few hundred nodes, is not cached."""

SHARE = 0.1
"""The largest share of the loop's time for making any other answer, as far as `REST_S` allows."""

REST_S = 1.0
"""The longest age of an answer: heartbeats and steps come once a second."""

Key = tuple[str | None, str, str]
"""The job, or None for all jobs that match a pattern; this pattern; and the encoding."""


class _Made(Struct, frozen=True):
    body: bytes
    version: tuple[int, str | None]
    rests_until: float


class ResponseCache:
    """Caches answers about jobs: each is made once for all clients, as often as the loop can afford.

    An answer with 10,000 nodes takes tens of milliseconds and megabytes, and clients may request it every second. It is
    reused until the next record, for at most a second, and always has all records before the request.
    """

    def __init__(self, driver: Driver, change_signal: ChangeSignal) -> None:
        self._driver = driver
        self._change_signal = change_signal
        self._made: dict[Key, _Made] = {}
        """The answers that are not yet stale."""
        self._turn = asyncio.Lock()

    async def get(self, key: Key, make: Callable[[], Awaitable[bytes | None]]) -> bytes | None:
        """Return an answer with all records up to now: a cached one, or a new one once the loop can afford it.

        None, for a job that does not exist, is not cached.
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
        await asyncio.sleep(0)  # nodes are served between two answers, even if all are requested at once
        version = self._version
        began = time.thread_time()  # CPU time, which other programs do not affect
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


PIECE = 1_000
"""Nodes of jobs that are formatted without a pause: about four milliseconds."""


class Api:
    """Shows the machine's durable state."""

    def __init__(
        self,
        driver: Driver,
        change_signal: ChangeSignal,
        rounds_reader: RoundsReader,
        shared: Callable[[], SharedStatus | None],
        *,
        insecure: bool,
    ) -> None:
        """Show the driver's machine; `shared` returns the coordinators that share its store, if any."""
        self._driver = driver
        self._rounds_reader = rounds_reader
        self._shared = shared
        self._insecure = insecure
        self._shown = ResponseCache(driver, change_signal)

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.get("/healthz", self._health),
            web.get("/v1/jobs", self._jobs),
            web.get("/v1/jobs/{job:[^/]+}", self._job),
        ]

    async def _health(self, request: web.Request) -> web.Response:
        machine = self._driver.machine
        state, status = ("ok", 200) if machine.store_error is None else ("cannot record", 503)
        if CALLER.get().token is None and not self._insecure:
            return respond(request, LivenessAnswer(status=state), status)
        health = HealthAnswer(
            status=state,
            reason=machine.store_error or describe_silent_jobs(machine.cluster),
            version=__version__,
            jobs=len(machine.jobs),
            sessions=machine.sessions,
            insecure=self._insecure,
        )
        return respond(request, health, status)

    async def _jobs(self, request: web.Request) -> web.Response:
        kind, caller = wanted(request), CALLER.get()
        body = await self._shown.get((None, caller.jobs, kind), partial(self._show_all, kind, caller))
        return web.Response(body=body, content_type=kind)

    async def _job(self, request: web.Request) -> web.Response:
        kind, job = wanted(request), request.match_info["job"]
        body = await self._shown.get((job, job, kind), partial(self._show, job, kind))
        if body is None:
            raise UnknownJobError(job)
        return web.Response(body=body, content_type=kind)

    async def _show_all(self, kind: str, caller: Caller) -> bytes:
        driver = self._driver
        jobs = [
            job_view(run, driver.now, driver.machine.store_error)
            async for run in iterate_jobs(driver, PIECE)
            if caller.is_for(run.job)
        ]
        drained = drained_view(driver.machine.cluster.durable) if caller.jobs == ALL_JOBS else ()
        answer = JobsAnswer(jobs=tuple(jobs), drained=drained, insecure=self._insecure, shared=self._shared())
        return encoded(plain_without(answer, IN_LIST), kind)

    async def _show(self, job: str, kind: str) -> bytes | None:
        found = await self._rounds_reader.find(job)
        if found is None:
            return None
        shown = whole_view(*found, self._driver.now, self._driver.machine.store_error)
        await asyncio.sleep(0)  # encoding takes about as long as the view
        return encoded(shown, kind)
