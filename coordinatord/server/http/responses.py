"""Makes HTTP answers and errors, in JSON, or in msgpack for clients that `Accept` it; limits readers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler
from msgspec import json, msgpack

from coordinatord.protocol.errors import OperationalError, operational
from coordinatord.protocol.http.api import ErrorAnswer
from coordinatord.protocol.text import clip
from coordinatord.runtime.logs import fields
from coordinatord.runtime.websocket.handshake import REASON

log = logging.getLogger(__name__)

EVENT_STREAM = "text/event-stream"
"""The `Accept` of a client that wants server-sent events (HTML standard, 9.2)."""

STREAM_HEADERS = {
    "Content-Type": f"{EVENT_STREAM}; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # asks nginx to pass events on at once, and to read no faster than its client
    "X-Content-Type-Options": "nosniff",
}
"""The headers of a stream of events."""

JSON = "application/json"

MSGPACK = "application/msgpack"


def wanted(request: web.Request) -> str:
    """Return the encoding that a request accepts."""
    return MSGPACK if MSGPACK in request.headers.get("Accept", "") else JSON


def encoded(answer: Any, content_type: str) -> bytes:
    """Encode a record of `protocol.http`."""
    return json.encode(answer) + b"\n" if content_type == JSON else msgpack.encode(answer)


def respond(request: web.Request, answer: Any, status: int = 200) -> web.Response:
    """Answer with a record of `protocol.http`."""
    kind = wanted(request)
    return web.Response(body=encoded(answer, kind), status=status, content_type=kind)


def error_response(request: web.Request, status: int, code: str, message: str) -> web.Response:
    """Answer with an error: a code for programs, and a sentence for people."""
    # The message may repeat invalid text from the head of a request.
    return respond(request, ErrorAnswer(error=code, message=clip(message)), status)


class RequestRejectedError(OperationalError):
    """A request is rejected before it has any effect. State: unchanged."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class UnknownJobError(RequestRejectedError):
    """There is no such job. State: unchanged."""

    def __init__(self, job: str) -> None:
        super().__init__(404, "unknown_job", f"no job {job!r} is known here")


@web.middleware
async def uniform_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer all errors in one form: ours, those of aiohttp, such as an unknown path, and bugs."""
    try:
        return await handler(request)
    except RequestRejectedError as error:
        return error_response(request, error.status, error.code, str(error))
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        answer = error_response(
            request, error.status, "method", f"{request.path[:200]} takes {allowed}, not {request.method}"
        )
        answer.headers["Allow"] = allowed
        return answer
    except web.HTTPNotFound as error:
        return error_response(request, error.status, "unknown_path", f"nothing is served at {request.path[:200]}")
    except (web.HTTPBadRequest, web.HTTPServiceUnavailable) as error:
        code = "malformed" if isinstance(error, web.HTTPBadRequest) else "busy"
        answer = error_response(request, error.status, code, error.text or error.reason)
        answer.headers.update({REASON: error.headers[REASON]} if REASON in error.headers else {})
        answer.force_close()
        return answer
    except (web.HTTPException, ConnectionError):
        raise
    except Exception as error:
        if request.writer.output_size > 0:
            raise  # an answer has begun, and cannot be replaced
        return _explain(request, error)


def _explain(request: web.Request, error: Exception) -> web.Response:
    """Answer a request whose handler raised an unexpected error."""
    known = operational(error)
    if known is not None:
        return error_response(request, 503, "unavailable", str(known))
    text = "this is a bug of coordinatord, please report it: %s %s"
    log.error(text, request.method, request.path[:200], exc_info=error, extra=fields("bug"))
    return error_response(request, 500, "bug", "this is a bug of coordinatord, and its log says more: please report it")


class ReaderCount:
    """Limits the readers of one kind: each costs memory."""

    def __init__(self) -> None:
        self._readers = 0

    @contextmanager
    def one_more(self, most: int, refusal: str) -> Iterator[None]:
        """Count a reader within the context. Raises `RequestRejectedError` with `refusal` beyond `most` readers."""
        if self._readers >= most:
            raise RequestRejectedError(503, "busy", refusal)
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1
