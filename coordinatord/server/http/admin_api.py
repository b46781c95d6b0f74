"""Handles operators' requests, such as to drain a node or to stop a job. Each is answered once its result is durable.

A request is an event for the machine, and its answer is an effect, which waits for the records of the result like any
other. A number connects the two.
"""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import count

from aiohttp import web
from msgspec import Struct
from msgspec.structs import astuple, replace

from coordinatord.core.rounds.effects import Answer
from coordinatord.core.rounds.events import AdminRequested
from coordinatord.core.rounds.values.admin_requests import (
    AdminResult,
    DrainNode,
    ForgetJob,
    PardonNode,
    PreflightJob,
    QuarantineNode,
    Request,
    RestartJob,
    StopJob,
    UndrainNode,
)
from coordinatord.protocol.fields import Name
from coordinatord.protocol.http.api import AdminAnswer, AdminBody, DrainBody, StopBody
from coordinatord.protocol.schema import check
from coordinatord.server.driver import Driver
from coordinatord.server.http.request_body import read_body
from coordinatord.server.http.responses import UnknownJobError, error_response, respond
from coordinatord.server.sessions.connections import CALLER

REQUESTS_AT_ONCE_MAX = 100
"""The limit of requests in progress. They take milliseconds, so only a program in a loop sends more."""

_PATHS: dict[str, type[Request]] = {
    "/v1/jobs/{job:[^/]+}/stop": StopJob,
    "/v1/jobs/{job:[^/]+}/restart": RestartJob,
    "/v1/jobs/{job:[^/]+}/forget": ForgetJob,
    "/v1/jobs/{job:[^/]+}/preflight": PreflightJob,
    "/v1/nodes/{node:[^/]+}/drain": DrainNode,
    "/v1/nodes/{node:[^/]+}/undrain": UndrainNode,
    "/v1/nodes/{node:[^/]+}/quarantine": QuarantineNode,
    "/v1/nodes/{node:[^/]+}/pardon": PardonNode,
}
"""The class of request for each path. `[^/]+` allows braces in a name, unlike aiohttp's default pattern."""

_BODIES: dict[type[Request], type[AdminBody]] = {DrainNode: DrainBody, StopJob: StopBody}
"""The body of each class of request that has fields of its own."""

_ERROR_STATUSES = {
    AdminResult.UNKNOWN_NODE: 404,
    AdminResult.REFUSED: 409,
    AdminResult.CANNOT_RECORD: 503,
}
"""The HTTP status of each result that is an error."""


class _Target(Struct, frozen=True):
    target: Name


class AdminApi:
    """The handlers of operators' requests."""

    def __init__(self, driver: Driver) -> None:
        """Submit requests to a driver, and receive its effects of class `Answer`."""
        self._driver = driver
        driver.on(Answer, self._deliver)
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        """The answers of requests in progress, by number."""
        self._numbers = count(-1, -1)  # for `Answer.session`; the numbers of nodes' sessions are not below 0
        self._closed = False
        self.routes = [web.post(path, partial(self._serve, kind)) for path, kind in _PATHS.items()]

    def _deliver(self, answer: Answer) -> None:
        waiting = self._waiting.get(answer.session)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def close(self) -> None:
        """Answer all requests in progress: the daemon ends."""
        self._closed = True
        for number in self._waiting:
            self._deliver(_ending_answer(number))

    async def _serve(self, kind: type[Request], request: web.Request) -> web.Response:
        wanted, token = await _read(request, kind), CALLER.get().name
        if token:  # recorded beside the name of the person, which anybody can claim
            wanted = replace(wanted, by=f"{wanted.by} (token {token})")
        if len(self._waiting) >= REQUESTS_AT_ONCE_MAX:
            return error_response(
                request, 503, "busy", f"{REQUESTS_AT_ONCE_MAX} requests are in progress, the limit: try again"
            )
        answer = await self._submit(wanted)
        if answer.result is AdminResult.UNKNOWN_JOB:
            raise UnknownJobError(wanted.target, self._driver.machine.jobs)
        if answer.result in _ERROR_STATUSES:
            return error_response(request, _ERROR_STATUSES[answer.result], str(answer.result), answer.text)
        return respond(request, AdminAnswer(done=answer.result is AdminResult.DONE, message=answer.text))

    async def _submit(self, wanted: Request) -> Answer:
        number = next(self._numbers)
        if self._closed:
            return _ending_answer(number)
        waiting: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiting
        try:
            self._driver.submit(AdminRequested(number, wanted))
            return await waiting
        finally:
            del self._waiting[number]


def _ending_answer(number: int) -> Answer:
    text = "coordinatord ends, and this may not have been recorded: when it is back, look, and try again"
    return Answer(number, AdminResult.CANNOT_RECORD, text)


async def _read(request: web.Request, kind: type[Request]) -> Request:
    """Make a request of this kind from the path and the body of an HTTP request. Raises `RequestRejectedError`."""

    def make(body: object) -> Request:
        (name,) = request.match_info.values()  # the job or the node
        target = check({"target": name}, _Target, "request").target
        # The fields of a request are its target and those of its body, in the same order.
        return kind(target, *astuple(check(body, _BODIES.get(kind, AdminBody), "request")))

    return await read_body(request, make)
