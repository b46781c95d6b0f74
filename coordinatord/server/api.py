"""Reads over plain HTTP: health, and the state of jobs. Nothing here changes anything."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from coordinatord.core.run import Run
from coordinatord.core.view import drained_view, job_view, rounds_view
from coordinatord.server.answers import respond, unknown_job
from coordinatord.server.driver import Driver
from coordinatord.shared import __version__


class Api:
    """Shows the machine's state, as far as it is durable."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def routes(self) -> list[web.RouteDef]:
        """Return what is served where."""
        return [
            web.get("/healthz", self._health),
            web.get("/v1/jobs", self._jobs),
            web.get("/v1/jobs/{job}", self._job),
        ]

    async def _health(self, request: web.Request) -> web.Response:
        machine = self._driver.machine
        health = {
            "status": "ok" if machine.trouble is None else "cannot record",
            "reason": machine.trouble or "",
            "version": __version__,
            "jobs": len(machine.jobs),
            "sessions": machine.sessions,
        }
        return respond(request, health, status=200 if machine.trouble is None else 503)

    async def _jobs(self, request: web.Request) -> web.Response:
        await self._driver.written()
        cluster = self._driver.machine.cluster
        jobs = [self._view(run) for run in cluster.jobs.values()]
        return respond(request, {"jobs": jobs, "drained": drained_view(cluster)})

    async def _job(self, request: web.Request) -> web.Response:
        await self._driver.written()
        job = request.match_info["job"]
        run = self._driver.machine.jobs.get(job)
        if run is None:
            return unknown_job(request, job)
        return respond(request, self._view(run) | {"rounds": rounds_view(run, self._driver.now)})

    def _view(self, run: Run) -> dict[str, Any]:
        return job_view(run, self._driver.now, self._driver.machine.trouble)
