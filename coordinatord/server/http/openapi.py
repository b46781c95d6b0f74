"""Serves `GET /openapi.json`: the HTTP API as an OpenAPI document, for people, generators of clients and gateways.

`python -m tests.support.openapi` generates the file beside this module from the API's records.
"""

from __future__ import annotations

from pathlib import Path

from aiohttp import web

from coordinatord.server.http.responses import JSON

FILE = Path(__file__).with_suffix(".json")


def routes() -> list[web.RouteDef]:
    """Read the document, and return its route."""
    body = FILE.read_bytes()

    async def serve(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type=JSON)

    return [web.get("/openapi.json", serve)]
