"""Plain HTTP answers: msgpack for programs, JSON for those who ask for it by `Accept`."""

from __future__ import annotations

import json
from typing import Any

import msgpack
from aiohttp import web

SENDS = "text/event-stream"
"""What a client accepts that wants server-sent events (HTML standard, 9.2)."""


def respond(request: web.Request, body: dict[str, Any], status: int = 200) -> web.Response:
    """Answer with a map."""
    if "json" in request.headers.get("Accept", ""):
        return web.Response(text=json.dumps(body) + "\n", status=status, content_type="application/json")
    return web.Response(body=msgpack.packb(body), status=status, content_type="application/msgpack")


def complain(request: web.Request, status: int, code: str, message: str) -> web.Response:
    """Answer that it cannot be done: a word for programs, and a sentence for people."""
    return respond(request, {"error": code, "message": message}, status)


def unknown_job(request: web.Request, job: str) -> web.Response:
    """Answer that there is no such job."""
    return complain(request, 404, "unknown_job", f"no job {job!r} is known here")
