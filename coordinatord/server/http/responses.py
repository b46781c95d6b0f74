"""Makes HTTP answers and errors in JSON, or in msgpack for clients that accept it, and limits the number of readers.

All errors have the same form: a code for programs, and a sentence for people.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler
from msgspec import json, msgpack
from multidict import MultiMapping

from coordinatord.protocol.errors import OperationalError, operational
from coordinatord.protocol.http.api import ErrorAnswer
from coordinatord.protocol.text import clip, most_similar_of_many
from coordinatord.runtime.logs import fields
from coordinatord.runtime.websocket.handshake import REASON
from coordinatord.security.gatekeeper import DeniedError
from coordinatord.server.reads.change_signal import ChangeSignal
from coordinatord.server.sessions.connections import CALLER
from coordinatord.store.interface import StoreError

log = logging.getLogger(__name__)

EVENT_STREAM = "text/event-stream"
"""The content type of server-sent events (HTML standard, 9.2)."""

STREAM_HEADERS = {
    "Content-Type": f"{EVENT_STREAM}; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # nginx must neither delay events nor buffer them
    "X-Content-Type-Options": "nosniff",
}
"""The headers of a stream of events."""

PIECE_BYTES = 64 * 1024
"""The most bytes in one write to a stream: readers may share a large frame, but each connection buffers what is
written. The kernel closes the connection of a reader that does not read (`app.UNACKNOWLEDGED_MS`)."""

KEEP_ALIVE = b": nothing new\n\n"
"""A comment in a stream, which keeps proxies from closing a connection as idle."""

JSON = "application/json"

MSGPACK = "application/msgpack"


def accepted_encoding(request: web.Request) -> str:
    """Return the content type in which to answer a request."""
    return MSGPACK if MSGPACK in request.headers.get("Accept", "") else JSON


def encoded(answer: Any, content_type: str) -> bytes:
    """Encode a struct of `protocol.http` as JSON or msgpack."""
    return json.encode(answer) + b"\n" if content_type == JSON else msgpack.encode(answer)


def respond(request: web.Request, answer: Any, status: int = 200) -> web.Response:
    """Answer with a struct of `protocol.http`."""
    kind = accepted_encoding(request)
    return web.Response(body=encoded(answer, kind), status=status, content_type=kind)


async def stream(
    request: web.Request, frames: AsyncGenerator[bytes], change_signal: ChangeSignal
) -> web.StreamResponse:
    """Answer with these frames of server-sent events.

    After an error of the connection or the store, or if the reader does not read when the daemon ends, the stream ends:
    the client asks again from its last event.
    """
    response = web.StreamResponse(headers=STREAM_HEADERS)
    with suppress(ConnectionError, StoreError, TimeoutError):  # the last one comes at the end of the daemon
        await response.prepare(request)
        async with aclosing(frames):
            async for frame in frames:
                for start in range(0, len(frame), PIECE_BYTES):
                    async with change_signal.until_closed():
                        await response.write(frame[start : start + PIECE_BYTES])
    return response


def event_frame(name: str, data: object, event_id: str = "") -> bytes:
    """Encode a server-sent event with this data, which becomes one JSON object."""
    head = f"id: {event_id}\n" if event_id else ""
    return b"%sevent: %s\ndata: %s\n\n" % (head.encode(), name.encode(), json.encode(data))


def error_response(request: web.Request, status: int, code: str, message: str) -> web.Response:
    """Answer with an error: a code for programs, and a sentence for people."""
    # The message may quote invalid text from a request.
    return respond(request, ErrorAnswer(error=code, message=clip(message)), status)


class RequestRejectedError(OperationalError):
    """A request is rejected before it has any effect. State: unchanged."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class MalformedQueryError(RequestRejectedError):
    """A parameter of a request is unknown, or has no valid value. State: unchanged."""

    def __init__(self, message: str) -> None:
        super().__init__(400, "malformed", message)


def check_query(request: web.Request, *known: str) -> None:
    """Check that a request has only these parameters in its query. Raises `MalformedQueryError`."""
    unknown = next((name for name in request.query if name not in known), None)
    if unknown is not None:
        choice = f"those known here are {', '.join(sorted(known))}" if known else "none is known here"
        raise MalformedQueryError(f"{unknown[:40]!r} is an unknown parameter: {choice}")


def seconds_in(request: web.Request, name: str, meaning: str) -> float | None:
    """Return a parameter in seconds; None without it. Raises `MalformedQueryError` with its `meaning`."""
    text = request.query.get(name)
    if text is not None and not re.fullmatch(r"\d{1,12}(\.\d{1,9})?", text, re.ASCII):
        raise MalformedQueryError(f"{name} is {meaning}, not {text[:40]!r}")
    return None if text is None else float(text)


def number_in(query: MultiMapping[str], name: str, default: int, most: int, *, least: int = 0, other: str = "") -> int:
    """Return a whole number in a query; in the error, `other` names a further choice. Raises `MalformedQueryError`."""
    text = query.get(name, str(default))
    if not re.fullmatch(r"\d{1,19}", text, re.ASCII) or not least <= int(text) <= most:
        raise MalformedQueryError(f"{name} is {least} to {most}{other}, not {text[:40]!r}")
    return int(text)


class UnknownJobError(RequestRejectedError):
    """There is no such job; the text names the most similar one that the caller may see. State: unchanged."""

    def __init__(self, job: str, known: Iterable[str]) -> None:
        likely = most_similar_of_many(job, filter(CALLER.get().is_for, known))
        hint = f"; did you mean {likely!r}?" if likely else ""
        super().__init__(404, "unknown_job", f"no job {job!r} is known here{hint}")


@web.middleware
async def uniform_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer errors in the form of `error_response`: ours, those that aiohttp's router or parser raises, and bugs."""
    try:
        return await handler(request)
    except (DeniedError, RequestRejectedError) as error:
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
            raise  # part of an answer was sent, and cannot be replaced
        return _unexpected(request, error)


def _unexpected(request: web.Request, error: Exception) -> web.Response:
    """Answer a request after an unexpected error of its handler."""
    known = operational(error)
    if known is not None:
        return error_response(request, 503, "unavailable", str(known))
    text = "this is a bug of coordinatord, please report it: %s %s"
    log.error(text, request.method, request.path[:200], exc_info=error, extra=fields("bug"))
    return error_response(request, 500, "bug", "this is a bug of coordinatord, and its log says more: please report it")


class ReaderLimit:
    """Limits the number of readers of one kind, since each needs memory."""

    def __init__(self) -> None:
        self._readers = 0

    @contextmanager
    def admit(self, most: int, refusal: str) -> Iterator[None]:
        """Admit a reader within the context. Raises `RequestRejectedError` with `refusal` beyond `most` readers."""
        if self._readers >= most:
            raise RequestRejectedError(503, "busy", refusal)
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1
