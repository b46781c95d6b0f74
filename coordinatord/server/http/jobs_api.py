"""Serves the coordinator's health and the state of jobs, and caches large answers for many clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial

from aiohttp import web
from msgspec import Struct

from coordinatord.core.shown.job_view import charged_view, describe_silent_jobs, drained_view, job_view, whole_view
from coordinatord.protocol.http.api import IN_LIST, HealthAnswer, JobsAnswer, LivenessAnswer
from coordinatord.protocol.schema import plain_without
from coordinatord.runtime import __version__
from coordinatord.security.gatekeeper import Caller
from coordinatord.security.token_store import ALL_JOBS
from coordinatord.server.driver import Driver, iterate_jobs
from coordinatord.server.http.responses import (
    UnknownJobError,
    accepted_encoding,
    check_query,
    encoded,
    respond,
    seconds_in,
)
from coordinatord.server.reads.change_signal import ChangeSignal
from coordinatord.server.reads.rounds_reader import RoundsReader
from coordinatord.server.sessions.connections import CALLER

UNCACHED_S = 0.002
"""An answer that takes less CPU time, such as that about a job of a few hundred nodes, is not cached."""

SHARE = 0.1
"""The share of the event loop's time that making one answer again and again may take: one that takes 20 ms is made at
most every 0.2 s. No answer is used for longer than `MAX_AGE_S`, though, however long it takes to make."""

MAX_AGE_S = 1.0
"""The greatest age of a cached answer: heartbeats and steps come once a second."""

WAIT_S_MAX = 30.0
"""The longest wait for the end of a run: proxies close idle connections after a minute or less."""

Key = tuple[str | None, str, str]
"""The key of an answer: the name of the job, or None for all that a caller may see; the pattern of the names that it
has, or that one name; and the encoding."""


class _CachedBody(Struct, frozen=True):
    body: bytes
    version: tuple[int, str | None]
    """The cache's version when it was made."""
    valid_until: float
    """When it is dropped, by the loop's clock."""


class ResponseCache:
    """Caches answers about jobs, so that many clients cannot use up the event loop's time.

    An answer with 10,000 nodes takes tens of milliseconds and megabytes. It is reused for at most `MAX_AGE_S`, and only
    until the next record, so an answer always has all records before the request. After a record, clients wait until
    the next answer may be made without exceeding `SHARE`.
    """

    def __init__(self, driver: Driver, change_signal: ChangeSignal) -> None:
        self._driver = driver
        self._change_signal = change_signal
        self._cached: dict[Key, _CachedBody] = {}
        self._turn = asyncio.Lock()
        """Held while an answer is made."""

    async def get(self, key: Key, make: Callable[[], Awaitable[bytes | None]]) -> bytes | None:
        """Return a cached answer, or one that `make` returns; it has all records up to now.

        If the cached answer lacks a record, wait until it is dropped. `make` returns None for an unknown job.
        """
        while True:
            async with self._turn:
                made = self._cached.get(key)
                if made is None:
                    return await self._make(key, make)
                if made.version == self._version:
                    return made.body
            await asyncio.sleep(made.valid_until - self._driver.now)

    async def _make(self, key: Key, make: Callable[[], Awaitable[bytes | None]]) -> bytes | None:
        await asyncio.sleep(0)  # nodes are served between two answers
        version = self._version
        began = time.thread_time()  # CPU time, which other programs do not affect
        body = await make()
        cost_s = time.thread_time() - began
        if body is not None and cost_s >= UNCACHED_S:
            loop = asyncio.get_running_loop()
            valid_until = loop.time() + min(MAX_AGE_S, cost_s / SHARE)
            self._cached[key] = _CachedBody(body, version, valid_until)
            loop.call_at(valid_until, self._cached.pop, key, None)
        return body

    @property
    def _version(self) -> tuple[int, str | None]:
        """A value that changes with every record, and when the store fails or works again."""
        return self._change_signal.version, self._driver.machine.store_error


class JobsApi:
    """The handlers of requests for health and jobs."""

    def __init__(
        self, driver: Driver, change_signal: ChangeSignal, rounds_reader: RoundsReader, *, insecure: bool
    ) -> None:
        """Show the state of the driver's machine."""
        self._driver = driver
        self._change_signal = change_signal
        self._rounds_reader = rounds_reader
        self._insecure = insecure
        self._cache = ResponseCache(driver, change_signal)
        self.routes = [
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
        check_query(request)
        kind, caller = accepted_encoding(request), CALLER.get()
        body = await self._cache.get((None, caller.jobs, kind), partial(self._encode_all, kind, caller))
        return web.Response(body=body, content_type=kind)

    async def _job(self, request: web.Request) -> web.Response:
        check_query(request, "wait")
        kind, job = accepted_encoding(request), request.match_info["job"]
        await self._await_end(job, seconds_in(request, "wait", "how many seconds to wait for the end of the run"))
        body = await self._cache.get((job, job, kind), partial(self._encode_job, job, kind))
        if body is None:
            raise UnknownJobError(job, self._driver.machine.jobs)
        return web.Response(body=body, content_type=kind)

    async def _await_end(self, job: str, within_s: float | None) -> None:
        """Wait until the present run of a job has ended, another one has begun, the time is over, or the daemon ends.

        A program that asks again and again may miss the end: a coordinator that serves one run ends soon after it.
        """
        driver, signal = self._driver, self._change_signal
        run, until = driver.machine.jobs.get(job), driver.now + min(within_s or 0.0, WAIT_S_MAX)
        while run is not None and driver.machine.jobs.get(job) is run and not run.durable.state.ended:
            if signal.closed or driver.now >= until:
                return
            await signal.wait_after(signal.version, until - driver.now)

    async def _encode_all(self, kind: str, caller: Caller) -> bytes:
        driver = self._driver
        jobs = [
            job_view(run, driver.now, driver.machine.store_error)
            async for run in iterate_jobs(driver)
            if caller.is_for(run.job)
        ]
        machine, sees_all = driver.machine, caller.jobs == ALL_JOBS
        drained = drained_view(machine.cluster.durable) if sees_all else ()
        charged = charged_view(machine.cluster.durable, machine.policy, driver.now) if sees_all else ()
        answer = JobsAnswer(
            jobs=tuple(jobs), drained=drained, charged=charged, insecure=self._insecure, shared=driver.sharing.status()
        )
        return encoded(plain_without(answer, IN_LIST), kind)

    async def _encode_job(self, job: str, kind: str) -> bytes | None:
        found = await self._rounds_reader.find(job)
        if found is None:
            return None
        shown = whole_view(*found, self._driver.now, self._driver.machine.store_error)
        await asyncio.sleep(0)  # encoding takes as long as making the view
        return encoded(shown, kind)
