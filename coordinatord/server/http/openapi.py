"""`GET /openapi.json`: the HTTP API as an OpenAPI document, for people, generators of clients and gateways.

The file beside this module is made of the records that are sent and received, by `python -m tests.support.openapi`.
"""

from __future__ import annotations

from pathlib import Path

from aiohttp import web

from coordinatord.server.http.responses import JSON

FILE = Path(__file__).with_suffix(".json")


def routes() -> list[web.RouteDef]:
    """Return the route of the document, which is read here and now."""
    body = FILE.read_bytes()

    async def serve(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type=JSON)

    return [web.get("/openapi.json", serve)]
