"""What operators ask for over plain HTTP, and how it is answered: once it is durable, as everything that is said."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from itertools import count
from typing import Any

import msgpack
from aiohttp import web

from coordinatord.core.effects import Answer
from coordinatord.core.events import Asked
from coordinatord.core.requests import DrainNode, ForgetJob, Request, RestartJob, StopJob, UndrainNode, Verdict
from coordinatord.server.answers import complain, respond
from coordinatord.server.driver import Driver
from coordinatord.wire.messages import Name, Sentence
from coordinatord.wire.schema import SchemaError, check_for

ASKING_MAX = 100
"""Requests in progress: each is over when it is on the disk, so more are a mistake in somebody's loop."""

PARSERS = {"application/json": json.loads, "application/msgpack": msgpack.unpackb}
"""By Content-Type. No web page of another origin can have a browser send these without asking us first (CORS), which
we do not answer: so nobody is made to stop a job by looking at a page."""

_KINDS: dict[str, type[Request]] = {
    "/v1/jobs/{target}/stop": StopJob,
    "/v1/jobs/{target}/restart": RestartJob,
    "/v1/jobs/{target}/forget": ForgetJob,
    "/v1/nodes/{target}/drain": DrainNode,
    "/v1/nodes/{target}/undrain": UndrainNode,
}

_STATUSES = {Verdict.UNKNOWN: 404, Verdict.REFUSED: 409, Verdict.UNRECORDED: 503}


@dataclass(frozen=True, slots=True)
class Petition:
    """The body of a request: who asks, and why."""

    by: Name
    reason: Sentence


@dataclass(frozen=True, slots=True)
class _Target:
    target: Name


_check_petition = check_for(Petition)
_check_target = check_for(_Target)


class Requests:
    """All requests in progress."""

    def __init__(self) -> None:
        self._driver: Driver | None = None
        self._asking: dict[int, asyncio.Future[Answer]] = {}
        self._numbers = count(-1, -1)  # sessions of nodes are numbered upward

    def attach(self, driver: Driver) -> None:
        """Name the driver that decides; driver and requests need each other."""
        self._driver = driver

    def routes(self) -> list[web.RouteDef]:
        """Return what is served where."""
        return [web.post(path, self._serve, name=kind.__name__) for path, kind in _KINDS.items()]

    def deliver(self, answer: Answer) -> None:
        """Let whoever asked know."""
        asking = self._asking.get(answer.session)
        if asking is not None and not asking.done():
            asking.set_result(answer)

    async def _serve(self, request: web.Request) -> web.Response:
        parse = PARSERS.get(request.content_type)
        if parse is None:
            text = f"a request has Content-Type {' or '.join(PARSERS)}, not {request.content_type}"
            return complain(request, 415, "content_type", text)
        try:
            wanted = _read(request, parse, await request.read())
        except (SchemaError, ValueError, RecursionError, msgpack.UnpackException) as error:
            return complain(request, 400, "malformed", f"the request is not understood: {error}")
        if len(self._asking) >= ASKING_MAX:
            return complain(request, 503, "busy", f"{ASKING_MAX} requests are in progress, the limit: try again")
        answer = await self._ask(wanted)
        if answer.verdict in _STATUSES:
            return complain(request, _STATUSES[answer.verdict], str(answer.verdict), answer.text)
        return respond(request, {"done": answer.verdict is Verdict.DONE, "message": answer.text})

    async def _ask(self, wanted: Request) -> Answer:
        assert self._driver is not None  # noqa: S101 - attached before the first request can come
        number = next(self._numbers)
        asking: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._asking[number] = asking
        try:
            self._driver.submit(Asked(number, wanted))
            return await asking
        finally:
            del self._asking[number]


def _read(request: web.Request, parse: Any, body: bytes) -> Request:
    """Make a request of what came. Raises `SchemaError`, and what `parse` raises."""
    petition = _check_petition(parse(body), "request")
    target = _check_target(dict(request.match_info), "request").target
    resource = request.match_info.route.resource
    assert resource is not None  # noqa: S101 - only our own routes lead here
    return _KINDS[resource.canonical](target, petition.by, petition.reason)
