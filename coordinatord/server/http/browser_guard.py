"""Rejects browsers' requests from other sites' pages, which could otherwise read or change jobs.

A browser lets any page open a WebSocket to us (RFC 6455, 10.2); then `Origin` is foreign. By DNS rebinding, the owner
of a page can also make its name lead to our address, so that the page may read our answers; then `Host` is not our
name. Programs may use any name, as behind proxies and tunnels. No page can make them send requests, so only browsers'
names are checked.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Collection

from aiohttp import web
from aiohttp.typedefs import Handler

from coordinatord.protocol.ip_addresses import is_address, is_loopback, plain_address
from coordinatord.protocol.messages import SESSION_PATH
from coordinatord.protocol.text import clip
from coordinatord.runtime.logs import fields
from coordinatord.security.gatekeeper import client_network
from coordinatord.server.http.responses import error_response
from coordinatord.server.sessions.refusal_log import LogThrottle

log = logging.getLogger(__name__)

SHOWN_MAX = 200
"""The limit of an origin and of a path in the log, in characters."""

SAFE_METHODS = frozenset({"GET", "HEAD"})
"""Methods that change nothing."""

BROWSER_HEADERS = ("Accept-Language", "Origin", "Referer", "Sec-Fetch-Site")
"""Headers that only browsers send. Each request of a browser has at least one of them. A page can change the first one,
but not omit it; it cannot set the others (Fetch standard, 2.2.2)."""

BROWSER_PREFIX = "Mozilla/"
"""The prefix of each browser's User-Agent. In some browsers a page may change it."""

UNREGISTERED = (".localhost", ".local", ".internal", ".home.arpa", ".test")
"""Suffixes that nobody can register (RFC 6761, 6762 and 8375; ICANN for .internal, in 2024), so no foreign page has
such a name. Kubernetes' services are below .local."""


class OwnNames:
    """The names under which a browser may reach us."""

    def __init__(self, allowed: Collection[str] = ()) -> None:
        """Begin with this host's name, and the `allowed` ones; a leading dot allows all names below a domain."""
        self._allowed = frozenset(map(_plain, allowed))
        self._own = frozenset({_plain(socket.gethostname())})

    def resolve(self) -> None:
        """Resolve this host's full name in the background, because a name server may not answer."""
        threading.Thread(target=self._add_full_name, name="name of this host", daemon=True).start()

    def _add_full_name(self) -> None:
        try:
            found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM, flags=socket.AI_CANONNAME)
        except (OSError, UnicodeError):
            return  # it has no other name
        self._own |= {_plain(canonical) for *_, canonical, _ in found if canonical}

    def has(self, name: str) -> bool:
        """Whether a host name of a URL is ours, so that no foreign page can have it."""
        name = _plain(name)
        if not name or "." not in name:
            return True  # nobody can register it: it is missing, or a host of this network
        if is_address(name) or name.endswith(UNREGISTERED) or name in self._own | self._allowed:
            return True  # an address too: only a name can be made to lead to us
        return any(allowed.startswith(".") and name.endswith(allowed) for allowed in self._allowed)


class BrowserGuard:
    """Rejects requests that a foreign page may have sent."""

    def __init__(self, names: OwnNames) -> None:
        """Begin to resolve these names."""
        names.resolve()
        self._names = names
        self._throttle = LogThrottle()

    @web.middleware
    async def guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Handle a request, or answer it with 403."""
        origin = request.headers.get("Origin")
        if origin is not None and not self._may_send(request, origin):
            self._log_rejected(request, origin)
            return error_response(request, 403, "foreign", "no web page may send this request: use nodeclient, or curl")
        name = _host(request.headers.get("Host", ""))
        if _is_browser(request) and not self._names.has(name):
            return error_response(request, 403, "foreign_name", _unknown_name(name))
        return await handler(request)

    def _log_rejected(self, request: web.Request, origin: str) -> None:
        """Log a rejected request of a page; the lines about one address are limited."""
        suffix = self._throttle.line_suffix(
            client_network(plain_address(request.remote or "")), asyncio.get_running_loop().time()
        )
        if suffix is not None:
            text = "refused: a web page sent a request that only programs may send%s"
            origin, path = clip(origin, SHOWN_MAX), clip(request.path, SHOWN_MAX)
            log.warning(text, suffix, extra=fields("page_refused", origin=origin, path=path, peer=request.remote))

    def _may_send(self, request: web.Request, origin: str) -> bool:
        """Whether a page of this origin may send a request.

        Any page may send a GET, because its browser hides the answer. Only our own page may change something, over TLS
        or from this host.
        """
        if request.path == SESSION_PATH:
            return False
        if request.method in SAFE_METHODS:
            return True
        host = request.headers.get("Host", "")
        scheme, _, page_host = origin.partition("://")
        is_own = page_host == host != "" and self._names.has(_host(host))
        if request.secure and scheme != "https":
            return False  # the page was loaded in the clear, so anybody on the way may have changed it
        is_same_origin = request.headers.get("Sec-Fetch-Site", "same-origin") == "same-origin"
        return is_own and is_same_origin and (request.secure or is_on_this_host(request.remote))


def is_on_this_host(peer: str | None) -> bool:
    """Whether a peer is on this host, so that nobody can intercept its requests."""
    return is_loopback(plain_address(peer or ""))


def _unknown_name(name: str) -> str:
    return (
        f"coordinatord does not know the name {name[:253]} as its own, and another site's web page could use it: "
        "open this page by the address of the host, or start coordinatord with --allowed-hosts and this name"
    )


def _is_browser(request: web.Request) -> bool:
    headers = request.headers
    return headers.get("User-Agent", "").startswith(BROWSER_PREFIX) or any(mark in headers for mark in BROWSER_HEADERS)


def _host(header: str) -> str:
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.rpartition(":")[0] if ":" in header else header


def _plain(name: str) -> str:
    return name.lower().removesuffix(".")
