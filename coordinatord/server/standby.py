"""Serves on a standby, a coordinator that waits until the one that leads is gone.

It redirects all requests to the leader, and answers only those for its own health and metrics. Callers without a token
get only the health. A browser sends a cookie instead of a token, and a standby does not read it. So a browser is
redirected only if nobody needs a token.
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
from coordinatord.server.sessions.connections import CALLER, REQUEST_BYTES_MAX, Connections, start_runner
from coordinatord.server.sessions.tls_listener import TlsProvider
from coordinatord.store.etcd.roster import Coordinatord

RETRY_AFTER_S = 1
"""How many seconds clients should wait before they retry while no coordinator leads. An election takes a few."""

REASON_MAX = 300
"""The limit of a reason in a header, in characters: a sentence or two."""

IDLE_S = 5.0
"""How long a connection may be idle. It is short, since a redirected client does not come back."""

CLOSE_WITHIN_S = 0.2
"""How long requests in progress may delay the end of `serve_standby`, so that this coordinator can lead. Each is
answered from memory, at once."""


@asynccontextmanager
async def serve_standby(
    listeners: Iterable[socket],
    leader: Callable[[], Coordinatord | None],
    gatekeeper: Gatekeeper | None,
    tls: TlsProvider | None,
    limits: ConnectionLimits | None = None,
    why: Callable[[], str] = lambda: "",
) -> AsyncIterator[None]:
    """Accept connections at these sockets within the context, and redirect admitted callers to the leader.

    Without a gatekeeper, all callers are admitted. `leader` returns None while no leader is known. In that case `why`
    returns the reason, or an empty text. `limits` and `tls` are as in `Connections`.
    """
    answers, tasks = _StandbyAnswers(leader, why, insecure=gatekeeper is None), Tasks()
    limits = limits or ConnectionLimits.of_this_process()
    connections = Connections(sessions=None, gatekeeper=gatekeeper, limits=limits, tasks=tasks)
    access = AccessGuard(gatekeeper, cookie="", is_open=is_health)
    guards = [uniform_errors, connections.limit, access.guard, connections.record_token]
    app = web.Application(client_max_size=REQUEST_BYTES_MAX, middlewares=guards)
    own = [web.get("/healthz", answers.health), web.get("/metrics", answers.metrics)]
    app.add_routes([*own, web.route("*", "/{rest:.*}", answers.redirect)])
    runner = await start_runner(app, idle_s=IDLE_S, shutdown_s=CLOSE_WITHIN_S)
    try:
        await connections.accept(listeners, runner, tls)
        yield
    finally:
        connections.close()
        await runner.cleanup()
        await tasks.cancel()


class _StandbyAnswers:
    """The handlers of requests."""

    def __init__(self, leader: Callable[[], Coordinatord | None], why: Callable[[], str], *, insecure: bool) -> None:
        self._leader = leader
        self._why = why
        self._insecure = insecure
        self._registry = CollectorRegistry()
        Gauge(LEADING, LEADING_MEANS, registry=self._registry).set(0)

    async def health(self, request: web.Request) -> web.Response:
        """Answer with 200 if the leader is known, else with 503."""
        state, status = ("nobody leads", 503) if self._leader() is None else ("standby", 200)
        if CALLER.get().token is None and not self._insecure:
            return respond(request, LivenessAnswer(status=state), status)
        return respond(request, StandbyAnswer(status=state, reason="" if self._leader() else self._why()), status)

    async def metrics(self, request: web.Request) -> web.Response:
        """Answer with the standby's own metrics: with a redirect, Prometheus would count the leader's twice."""
        encode, content_type = choose_encoder(request.headers.get(hdrs.ACCEPT, ""))
        return web.Response(body=encode(self._registry), headers={hdrs.CONTENT_TYPE: content_type})

    async def redirect(self, request: web.Request) -> web.Response:
        """Redirect a request to the leader; answer with 503 if none is known."""
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
        answer.force_close()  # the client goes on at the leader
        return answer
