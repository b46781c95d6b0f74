"""Reads over plain HTTP: health, and the state of jobs. Nothing here changes anything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from aiohttp import web

from coordinatord.core.queries.job_view import drained_view, job_view, unheard, whole_view
from coordinatord.protocol.http.api import IN_LIST, HealthAnswer, JobsAnswer, LivenessAnswer
from coordinatord.protocol.http.coordinator_answers import SharedStatus
from coordinatord.runtime import __version__
from coordinatord.security.gatekeeper import Caller
from coordinatord.security.token_store import ALL_JOBS
from coordinatord.server.driver import Driver
from coordinatord.server.http.response_cache import ResponseCache
from coordinatord.server.http.responses import UnknownJobError, encoded, respond, wanted
from coordinatord.server.reads.change_signal import ChangeSignal
from coordinatord.server.reads.job_iteration import iterate_jobs
from coordinatord.server.reads.rounds_reader import RoundsReader
from coordinatord.server.sessions.connections import CALLER

PIECE = 1_000
"""Nodes of jobs that are shown without a pause: about four milliseconds."""


class Api:
    """Shows the machine's state, as far as it is durable."""

    def __init__(
        self,
        driver: Driver,
        change_signal: ChangeSignal,
        rounds_reader: RoundsReader,
        shared: Callable[[], SharedStatus | None],
        *,
        insecure: bool,
    ) -> None:
        """Show the driver's machine, and what `shared` returns of its store; with `insecure`, everybody is let in."""
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
            reason=machine.store_error or unheard(machine.cluster),
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
        return encoded(answer, kind, IN_LIST)

    async def _show(self, job: str, kind: str) -> bytes | None:
        found = await self._rounds_reader.find(job)
        if found is None:
            return None
        shown = whole_view(*found, self._driver.now, self._driver.machine.store_error)
        await asyncio.sleep(0)  # encoding takes about as long as the view
        return encoded(shown, kind)
