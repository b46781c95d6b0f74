"""Plain HTTP for everybody but nodes: health and the state of jobs, as msgpack or, by `Accept`, as JSON."""

from __future__ import annotations

import json
from typing import Any

import msgpack
from aiohttp import web

from coordinatord.core.run import Run
from coordinatord.core.view import job_view
from coordinatord.server.driver import Driver
from coordinatord.shared import __version__


class Api:
    """Reads of the machine's state; nothing here changes it."""

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
        return _respond(request, health, status=200 if machine.trouble is None else 503)

    async def _jobs(self, request: web.Request) -> web.Response:
        await self._driver.written()
        return _respond(request, {"jobs": [self._view(run) for run in self._driver.machine.jobs.values()]})

    async def _job(self, request: web.Request) -> web.Response:
        await self._driver.written()
        job = request.match_info["job"]
        run = self._driver.machine.jobs.get(job)
        if run is None:
            return _respond(request, {"error": "unknown_job", "message": f"no job {job!r} is known here"}, status=404)
        return _respond(request, self._view(run))

    def _view(self, run: Run) -> dict[str, Any]:
        return job_view(run, self._driver.now, self._driver.machine.trouble)


def _respond(request: web.Request, body: dict[str, Any], status: int = 200) -> web.Response:
    if "json" in request.headers.get("Accept", ""):
        return web.Response(text=json.dumps(body) + "\n", status=status, content_type="application/json")
    return web.Response(body=msgpack.packb(body), status=status, content_type="application/msgpack")
