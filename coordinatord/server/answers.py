"""Plain HTTP answers: msgpack for programs, JSON for those who ask for it by `Accept`."""

from __future__ import annotations

import json
from typing import Any

import msgpack
from aiohttp import web

SENDS = "text/event-stream"
"""What a client accepts that wants server-sent events (HTML standard, 9.2)."""


JSON = "application/json"

MSGPACK = "application/msgpack"


def wanted(request: web.Request) -> str:
    """Return how the answer to a request is to be encoded."""
    return JSON if "json" in request.headers.get("Accept", "") else MSGPACK


def encoded(body: dict[str, Any], content_type: str) -> bytes:
    """Encode a map."""
    return f"{json.dumps(body)}\n".encode() if content_type == JSON else bytes(msgpack.packb(body))


def respond(request: web.Request, body: dict[str, Any], status: int = 200) -> web.Response:
    """Answer with a map."""
    kind = wanted(request)
    return web.Response(body=encoded(body, kind), status=status, content_type=kind)


def complain(request: web.Request, status: int, code: str, message: str) -> web.Response:
    """Answer that it cannot be done: a word for programs, and a sentence for people."""
    return respond(request, {"error": code, "message": message}, status)


def unknown_job(request: web.Request, job: str) -> web.Response:
    """Answer that there is no such job."""
    return complain(request, 404, "unknown_job", f"no job {job!r} is known here")
