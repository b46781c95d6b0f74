"""Serves in place of all else while a coordinator stands by: it names the leader, and does nothing more.

Callers with a token are sent to the leader by a redirect, which nodes, commands, curl and browsers follow. Callers
without one receive the health of this coordinator, and not the leader.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from socket import socket

from aiohttp import hdrs, web
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.exposition import choose_encoder

from coordinatord.protocol.http.api import LivenessAnswer, StandbyAnswer
from coordinatord.protocol.text import clip
from coordinatord.runtime.tasks import Tasks
from coordinatord.runtime.websocket.handshake import with_reason
from coordinatord.security.gatekeeper import Gatekeeper
from coordinatord.server.http.access_guard import AccessGuard, is_health
from coordinatord.server.http.responses import error_response, respond, uniform_errors
from coordinatord.server.metrics.scrape import LEADING, LEADING_MEANS
from coordinatord.server.sessions.connection_limits import ConnectionLimits
from coordinatord.server.sessions.connections import CALLER, HEADERS_MAX, LINE_BYTES_MAX, REQUEST_BYTES_MAX, Connections
from coordinatord.server.sessions.tls_listener import TlsNow
from coordinatord.store.etcd.roster import Coordinatord

RETRY_AFTER_S = 1
"""The seconds until the next try where nobody leads: a takeover takes the length of a lease."""

REASON_MAX = 300
"""The length of a reason in a header."""

OK = 200

IDLE_S = 5.0
"""How long a connection may be silent: a standby has nothing more to send on it."""

CLOSE_WITHIN_S = 0.2
"""How long the requests in progress may take once it leads: each is answered from memory."""


@asynccontextmanager
async def serve_standby(
    listeners: Iterable[socket],
    leader: Callable[[], Coordinatord | None],
    gatekeeper: Gatekeeper | None,
    tls: TlsNow | None,
    limits: ConnectionLimits | None = None,
    why: Callable[[], str] = lambda: "",
) -> AsyncIterator[None]:
    """Name the leader to callers whom the gatekeeper lets in, at these sockets, while the context lasts.

    Where nobody leads, `why` returns the reason, or nothing if it is not known. `limits` are those of `app.serve`.
    """
    answers, tasks = _StandbyAnswers(leader, why, insecure=gatekeeper is None), Tasks()
    connections = Connections(None, gatekeeper, limits or ConnectionLimits.of_this_process(), tasks)
    guards = [uniform_errors, connections.note, AccessGuard(gatekeeper, "", is_health).guard, connections.note_caller]
    app = web.Application(client_max_size=REQUEST_BYTES_MAX, middlewares=guards)
    own = [web.get("/healthz", answers.health), web.get("/metrics", answers.metrics)]
    app.add_routes([*own, web.route("*", "/{rest:.*}", answers.redirect)])
    runner = web.AppRunner(
        app,
        access_log=None,
        keepalive_timeout=IDLE_S,
        shutdown_timeout=CLOSE_WITHIN_S,
        max_line_size=LINE_BYTES_MAX,
        max_field_size=LINE_BYTES_MAX,
        max_headers=HEADERS_MAX,
    )
    await runner.setup()
    try:
        await connections.accept(listeners, runner, tls)
        yield
    finally:
        connections.close()
        await runner.cleanup()
        await tasks.cancel()


class _StandbyAnswers:
    """Answers each request."""

    def __init__(self, leader: Callable[[], Coordinatord | None], why: Callable[[], str], *, insecure: bool) -> None:
        self._leader = leader
        self._why = why
        self._insecure = insecure
        self._registry = CollectorRegistry()
        Gauge(LEADING, LEADING_MEANS, registry=self._registry).set(0)

    async def health(self, request: web.Request) -> web.Response:
        """Answer that this coordinator is well, if it knows the leader."""
        state, status = ("nobody leads", 503) if self._leader() is None else ("standby", OK)
        if CALLER.get().token is None and not self._insecure:
            return respond(request, LivenessAnswer(status=state), status)
        return respond(request, StandbyAnswer(status=state, reason="" if status == OK else self._why()), status)

    async def metrics(self, request: web.Request) -> web.Response:
        """Answer Prometheus, which would follow a redirect and count the leader's figures twice."""
        encode, content_type = choose_encoder(request.headers.get(hdrs.ACCEPT, ""))
        return web.Response(body=encode(self._registry), headers={hdrs.CONTENT_TYPE: content_type})

    async def redirect(self, request: web.Request) -> web.Response:
        """Redirect a request to the leader; answer 503 where nobody leads."""
        leader = self._leader()
        if leader is None:
            text = f"stands by, and nobody leads: {clip(self._why(), REASON_MAX) or 'try again'}"
            answer = error_response(request, 503, "standby", f"this coordinator {text}")
            answer.headers[hdrs.RETRY_AFTER] = str(RETRY_AFTER_S)
            answer.headers.update(with_reason(text))
        else:
            text = f"this coordinator stands by: {leader.endpoint} leads"
            answer = error_response(request, 307, "standby", text)
            scheme = "https" if leader.secure else "http"
            answer.headers[hdrs.LOCATION] = f"{scheme}://{leader.endpoint}{request.rel_url}"
        answer.force_close()
        return answer
