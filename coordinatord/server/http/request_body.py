"""Reads the body of a request, in JSON or msgpack, within limits of length and time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from aiohttp import web
from msgspec import json, msgpack

from coordinatord.protocol.schema import ERRORS, SchemaError
from coordinatord.server.http.responses import RequestRejectedError

BODY_WITHIN_S = 10.0
"""How long a body may take after its head. Most bodies are short, and come in the same packet as the head."""

PARSERS: dict[str, Callable[[bytes], object]] = {"application/json": json.decode, "application/msgpack": msgpack.decode}
"""The parsers by Content-Type. A browser asks for permission (CORS) before it sends these from another site's page."""

Made = TypeVar("Made")


async def read_body(request: web.Request, make: Callable[[object], Made]) -> Made:
    """Return the decoded body as `make` converts it, which may raise `SchemaError`. Raises `RequestRejectedError`."""
    parse = PARSERS.get(request.content_type)
    if parse is None:
        text = f"a request has Content-Type {' or '.join(PARSERS)}, not {request.content_type}"
        raise RequestRejectedError(415, "content_type", text)
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            return make(parse(await request.read()))
    except web.HTTPRequestEntityTooLarge as error:
        raise RequestRejectedError(
            413, "too_large", f"a request has at most {request.client_max_size} bytes"
        ) from error
    except TimeoutError as error:
        text = f"the rest of the request has not come within {BODY_WITHIN_S:g} s"
        raise RequestRejectedError(408, "incomplete", text) from error
    except (SchemaError, *ERRORS, web.RequestPayloadError) as error:
        raise RequestRejectedError(400, "malformed", f"the request is not understood: {_why(error)}") from error


def _why(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, web.RequestPayloadError):
        return "its body is not as its headers say"
    return str(error)
