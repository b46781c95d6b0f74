"""Serves the files of the live page at `GET /`, which shows jobs and acts on them.

The page reads its data from `live_updates`. Its headers forbid the browser to load anything from another host.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from aiohttp import web
from msgspec import Struct

KINDS = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
"""The content types by suffix."""

HEADERS = {
    # The page shows texts of workers as text. If a bug showed one as markup, this would keep it from running scripts.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # A browser revalidates each file, so that a page is never older than its daemon.
    "Cache-Control": "no-cache",
}


class _PageFile(Struct, frozen=True):
    """One file of the page."""

    body: bytes
    kind: str
    etag: str

    async def serve(self, request: web.Request) -> web.Response:
        known = request.if_none_match or ()
        fresh = any(etag.value in {self.etag, "*"} for etag in known)
        response = web.Response(status=304) if fresh else web.Response(body=self.body)
        response.headers.update(HEADERS)
        response.etag = self.etag
        if not fresh:
            response.content_type, response.charset = self.kind, "utf-8"
        return response


def routes() -> list[web.RouteDef]:
    """Return the routes of the page, which is at `/`, and of its other files."""
    files = {path.name: _load(path) for path in sorted(Path(__file__).parent.iterdir()) if path.suffix in KINDS}
    index = files.pop("index.html")
    return [web.get("/", index.serve), *(web.get(f"/page/{name}", file.serve) for name, file in files.items())]


def _load(path: Path) -> _PageFile:
    body = path.read_bytes()
    return _PageFile(body, KINDS[path.suffix], hashlib.sha256(body).hexdigest()[:16])
