"""Rejects browsers' requests from other sites' pages, which could otherwise read or change jobs.

A browser lets any page open a WebSocket to us (RFC 6455, 10.2), and lets a page whose name was rebound to our address
(DNS rebinding) read our answers. In the first case the browser sends a foreign `Origin`; in the second `Host` is not
our name. Programs may use any name: they reach us through services, tunnels and proxies, and no page makes them send
requests. So only browsers' names are checked.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import threading
from collections.abc import Collection

from aiohttp import web
from aiohttp.typedefs import Handler

from coordinatord.core.rounds.queries.master_address import plain
from coordinatord.protocol.messages import SESSION_PATH
from coordinatord.protocol.text import clip
from coordinatord.runtime.logs import fields
from coordinatord.security.gatekeeper import client_network
from coordinatord.server.http.responses import error_response
from coordinatord.server.sessions.refusal_log import LogThrottle

log = logging.getLogger(__name__)

SHOWN_MAX = 200
"""The length of an origin and a path in the log, in characters."""

READING = frozenset({"GET", "HEAD"})

MARKS = ("Accept-Language", "Origin", "Referer", "Sec-Fetch-Site")
"""Headers that browsers send and programs do not. A page can change the first, but not omit it, and only a browser sets
the others (Fetch standard, 2.2.2)."""

BROWSER = "Mozilla/"
"""The prefix of each browser's User-Agent. In some browsers a page may change it, but not omit Accept-Language."""

PRIVATE = (".localhost", ".local", ".internal", ".home.arpa", ".test")
"""Suffixes that nobody can register (RFC 6761, 6762 and 8375; ICANN for .internal, in 2024), so no foreign page has
such a name. Kubernetes' services are below .local."""


class Names:
    """The names under which a browser may reach us."""

    def __init__(self, allowed: Collection[str] = ()) -> None:
        """Begin with this host's names.

        `allowed` are more, and one that begins with a dot stands for all names below it.
        """
        self._allowed = frozenset(map(_plain, allowed))
        self._own = frozenset({_plain(socket.gethostname())})

    def look_up(self) -> None:
        """Start looking up the host's full name in the background: a name server may not answer."""
        threading.Thread(target=self._look_up, name="name of this host", daemon=True).start()

    def _look_up(self) -> None:
        try:
            found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM, flags=socket.AI_CANONNAME)
        except (OSError, UnicodeError):
            return  # it has no other name
        self._own |= {_plain(canonical) for *_, canonical, _ in found if canonical}

    def has(self, name: str) -> bool:
        """Whether a name, as in a URL, is ours, so that no foreign page can have it."""
        name = _plain(name)
        if not name or "." not in name:
            return True  # nobody can register it, so it is a host of this network
        if _is_address(name) or name.endswith(PRIVATE) or name in self._own | self._allowed:
            return True
        return any(allowed.startswith(".") and name.endswith(allowed) for allowed in self._allowed)


class Browsers:
    """Rejects requests that no browser may send."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._throttle = LogThrottle()

    @web.middleware
    async def guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Handle a request, or answer it with 403."""
        origin = request.headers.get("Origin")
        if origin is not None and not self._may_send(request, origin):
            text = "no web page may send this request: use nodeclient, or curl"
            self._log_rejected(request, origin)
            return error_response(request, 403, "foreign", text)
        name = _host(request.headers.get("Host", ""))
        if _is_browser(request) and not self._names.has(name):
            return error_response(request, 403, "foreign_name", _unknown(name))
        return await handler(request)

    def _log_rejected(self, request: web.Request, origin: str) -> None:
        """Log a rejected request of a page. Anybody can send many, so the lines about one address are limited."""
        more = self._throttle.line_suffix(
            client_network(plain(request.remote or "")), asyncio.get_running_loop().time()
        )
        if more is not None:
            text = "refused: a web page sent a request that only programs may send%s"
            origin, path = clip(origin, SHOWN_MAX), clip(request.path, SHOWN_MAX)
            log.warning(text, more, extra=fields("page_refused", origin=origin, path=path, peer=request.remote))

    def _may_send(self, request: web.Request, origin: str) -> bool:
        """Whether a page of this origin may send a request. Any page may read, since it cannot see the answer.

        Our own page may also act, under our name, over TLS or from this host.
        """
        if request.path == SESSION_PATH:
            return False
        if request.method in READING:
            return True
        host = request.headers.get("Host", "")
        scheme, _, place = origin.partition("://")
        own = place == host != "" and self._names.has(_host(host))
        if request.secure and scheme != "https":
            return False  # it came in the clear, so anybody on the way may have sent it
        same = request.headers.get("Sec-Fetch-Site", "same-origin") == "same-origin"
        return own and same and (request.secure or is_loopback(request.remote))


def is_loopback(peer: str | None) -> bool:
    """Whether a request came from this host, so that nobody can intercept it."""
    address = plain(peer or "")
    return _is_address(address) and ipaddress.ip_address(address).is_loopback


def _unknown(name: str) -> str:
    return (
        f"coordinatord does not know the name {name[:253]} as its own, and another site's web page could use it: "
        "open this page by the address of the host, or start coordinatord with --allowed-hosts and this name"
    )


def _is_browser(request: web.Request) -> bool:
    headers = request.headers
    return headers.get("User-Agent", "").startswith(BROWSER) or any(mark in headers for mark in MARKS)


def _host(header: str) -> str:
    """Return the host of a `Host` header, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.rpartition(":")[0] if ":" in header else header


def _plain(name: str) -> str:
    return name.lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
