"""Accepts all connections to the port, and makes each a node's session (a WebSocket) or leaves it to aiohttp.

nodeclient's request for a session is answered here without aiohttp, which would take too long when 10,000 nodes connect
at once. aiohttp reads all other connections from their first byte on. It also reads unusual requests for a session,
such as those of a web page or of a proxy that reuses its connection to us. `take_over` makes a session of these.

A connection that sends no request in time is closed. Otherwise such connections could use up the descriptors, and no
node could connect. aiohttp itself has a timeout only after the first request.

Each turn of the event loop begins a limited number of sessions, so that new sessions do not delay heartbeats.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter, deque
from collections.abc import Iterable
from contextvars import ContextVar
from typing import cast

from aiohttp import HttpVersion11, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler
from msgspec import structs

from coordinatord.protocol.access_token import Role
from coordinatord.protocol.ip_addresses import plain_address
from coordinatord.protocol.messages import SESSION_PATH
from coordinatord.runtime.logs import fields
from coordinatord.runtime.pinned_tls import names_of
from coordinatord.runtime.tasks import Tasks
from coordinatord.runtime.websocket.handshake import (
    END_OF_HEAD,
    HEAD_BYTES_MAX,
    HandshakeError,
    answer_to,
    headers_of,
    with_reason,
)
from coordinatord.security.gatekeeper import ANYBODY, Caller, DeniedError, Gatekeeper
from coordinatord.server.sessions.connection_limits import (
    REQUEST_WITHIN_S,
    Closable,
    ConnectionLimits,
    PendingConnections,
)
from coordinatord.server.sessions.node_sessions import NodeSessions
from coordinatord.server.sessions.tls_listener import TlsListener, TlsProvider, client_network_of

BACKLOG = 4_096
"""Connections that the kernel queues when a whole cluster starts at once; Linux's own limit since 5.4."""

IDLE_S = 75.0
"""How long a connection over HTTP may be idle between two requests: most proxies and programs close it earlier."""

FIRST_REQUEST_S = 1.0
"""How long a new connection may still send its request when the server ends: a program needs milliseconds, or a second
on a busy host. Browsers open connections in advance, and may never use them."""

LINE_BYTES_MAX = 8_190
"""The longest path of a request, and the longest value of a header; aiohttp's own default."""

HEADERS_MAX = 128
"""The most headers of a request: a browser sends some twenty, and proxies add a few."""

REQUEST_BYTES_MAX = 64 * 1024
"""The most bytes of a request's body: our requests have a name and a sentence."""

SESSIONS_AT_ONCE = 256
"""Sessions that begin in one turn of the event loop. They take some 15 ms, and their first messages 45 ms in later
turns. Fewer would delay the joins of 1,000 nodes, since each turn has a cost."""

SESSION_REQUEST = f"GET {SESSION_PATH} HTTP/1.1\r\n".encode()

UNUSUAL = frozenset({"content-length", "expect", "origin", "transfer-encoding"})
"""Headers that nodeclient's request for a session does not have. A browser always sends `Origin` with a request for a
WebSocket (RFC 6455, 4.1), and `browser_guard` rejects it."""

CALLER: ContextVar[Caller] = ContextVar("caller")
"""The caller of the HTTP request that is being handled."""

CLIENT_ERRORS = (HttpProcessingError, ConnectionError, web.RequestPayloadError, UnicodeError)
"""Errors that clients cause, and that aiohttp would log with a traceback."""


class _BadRequests(logging.Filter):
    """Replaces aiohttp's traceback by one line at level DEBUG, if the client has caused the error."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Change a record of such an error; return whether to log the record."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, CLIENT_ERRORS):
            record.levelno, record.levelname, record.exc_info = logging.DEBUG, "DEBUG", None
            record.msg, record.args = "bad request: %s", (type(error).__name__,)
            record.__dict__.update(fields("bad_request"))
            return logging.getLogger().isEnabledFor(logging.DEBUG)
        return True


_BAD_REQUESTS = _BadRequests()


class Connections:
    """The listening sockets, and all connections that have sent no whole request."""

    def __init__(
        self, sessions: NodeSessions | None, gatekeeper: Gatekeeper | None, limits: ConnectionLimits, tasks: Tasks
    ) -> None:
        """Begin sessions of callers that the gatekeeper admits; without one, of all callers.

        Without `sessions`, as on a standby, all connections are HTTP.
        """
        self._sessions = sessions
        self._gatekeeper = gatekeeper
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._pending = PendingConnections[Closable](
            REQUEST_WITHIN_S,
            lambda: limits.pending_max(0 if sessions is None else sessions.size),
            lambda silent: silent.force_close(),
        )
        self._session_requests = deque[_NewConnection]()
        """Connections with a whole request for a session, which await their turn, oldest first."""
        self._tasks = tasks
        self._closed = False
        self._servers: list[asyncio.Server | TlsListener] = []
        self._http: web.Server
        """aiohttp's server, which makes a handler for each connection that it reads."""
        self._taken_over: set[web.RequestHandler] = set()
        """Connections that aiohttp has read and that are sessions now: they do not count as connections over HTTP."""
        self._authenticated: set[web.RequestHandler] = set()
        """Connections over HTTP that have shown a token, and some that have ended since."""

    async def accept(self, listeners: Iterable[socket.socket], runner: web.AppRunner, tls: TlsProvider | None) -> None:
        """Start to accept connections for sessions and for `runner`, which must be set up; with `tls`, over TLS."""
        assert runner.server is not None  # noqa: S101 - the setup has made it
        self._http = runner.server
        logging.getLogger("aiohttp.server").addFilter(_BAD_REQUESTS)

        def make() -> _NewConnection:
            return _NewConnection(self)

        for listener in listeners:
            if tls is None:
                self._servers.append(await self._loop.create_server(make, sock=listener, backlog=BACKLOG))
            else:
                listener.listen(BACKLOG)
                self._servers.append(
                    TlsListener(listener, tls, make, self._pending, self._tasks, self._record_bad_certificate)
                )

    @web.middleware
    async def limit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Handle a request; answer a connection's first one with 503 if there are too many connections over HTTP."""
        is_first = self._pending.discard(request.protocol)
        busy = self._make_room(request.protocol) if is_first else ""
        if busy:
            raise web.HTTPServiceUnavailable(text=busy)
        return await handler(request)

    @web.middleware
    async def record_token(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Record that a connection has shown a token, so that it is not closed to make room for another."""
        if CALLER.get().token is not None:
            self._authenticated.add(request.protocol)
        return await handler(request)

    async def take_over(self, request: web.Request) -> web.StreamResponse:
        """Make a session of a connection that aiohttp has read so far; the end of the session cancels this."""
        try:
            answer = _answer_to(request)
        except HandshakeError as error:
            raise web.HTTPBadRequest(text=str(error), headers=with_reason(str(error))) from error
        assert self._sessions is not None  # noqa: S101 - a standby has no such path
        handler, transport, tail = request.protocol, request.transport, _UpgradeTail()
        if transport is None:
            raise ConnectionResetError
        handler.keep_alive(False)  # this cancels aiohttp's timer for an idle connection
        # aiohttp passes the bytes that it has received after the request to `tail` at once, and none from then on.
        handler.set_parser(tail)  # type: ignore[arg-type] # it has the methods of a parser that aiohttp calls
        # The end of the connection ends the handler, and that cancels this request.
        self._sessions.open(transport, answer, bytes(tail.data), CALLER.get(), handler.connection_lost)
        self._taken_over.add(handler)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._taken_over.discard(handler)
        raise AssertionError("only a cancellation ends the wait")

    async def drain(self) -> None:
        """Stop accepting, and wait for the requests of connections that were accepted a moment ago.

        Otherwise their clients would see a failure, although systemd keeps the listening socket for the next daemon.
        """
        self._stop_accepting()
        await self._pending.drain(FIRST_REQUEST_S)

    def close(self) -> None:
        """Stop accepting, and close the connections that have got no answer.

        The process may go on, as a standby or as the leader, and would never answer them.
        """
        self._closed = True
        self._stop_accepting()
        for unanswered in [*self._pending, *self._session_requests]:
            unanswered.force_close()
        self._pending.close()
        self._session_requests.clear()

    def _stop_accepting(self) -> None:
        while self._servers:
            self._servers.pop().close()

    def _record_bad_certificate(self, reason: str, peer: str) -> None:
        if self._gatekeeper is not None:
            self._gatekeeper.record_bad_certificate(reason, plain_address(peer))

    # For a new connection

    def on_made(self, connection: _NewConnection, transport: asyncio.BaseTransport) -> None:
        """Start the timeout for the request of a connection; close one that was accepted after `close`."""
        if self._closed:
            connection.force_close()
            return
        self._pending.add(connection, client_network_of(transport))

    def on_lost(self, connection: _NewConnection) -> None:
        """Remove a connection that has ended without a request."""
        self._pending.discard(connection)

    def route(self, connection: _NewConnection, transport: asyncio.Transport, data: bytes) -> bool:
        """Leave a connection to aiohttp, or queue it as a session, by its `data` so far.

        Return False if the data are not enough to decide. A queued connection is not read until its turn, so that it
        buffers no more.
        """
        if self._sessions is None or not SESSION_REQUEST.startswith(data[: len(SESSION_REQUEST)]):
            self._hand_to_http(connection, transport, data)
            return True
        if data.find(END_OF_HEAD, 0, HEAD_BYTES_MAX) < 0 and len(data) < HEAD_BYTES_MAX:
            return False
        self._pending.discard(connection)
        transport.pause_reading()
        if not self._session_requests:
            self._loop.call_soon(self._begin_some)
        self._session_requests.append(connection)
        return True

    def _begin_some(self) -> None:
        """Begin the sessions whose turn it is, and leave the others to further turns of the event loop."""
        for _ in range(min(SESSIONS_AT_ONCE, len(self._session_requests))):
            connection = self._session_requests.popleft()
            if connection.transport is not None:
                connection.transport.resume_reading()
                self._begin(connection, connection.transport, connection.data)
        if self._session_requests:
            self._loop.call_soon(self._begin_some)

    def _begin(self, connection: _NewConnection, transport: asyncio.Transport, data: bytes) -> None:
        end = data.find(END_OF_HEAD, 0, HEAD_BYTES_MAX) + len(END_OF_HEAD)
        # The end of a head that is too long is not found, so this slice is empty, and aiohttp rejects the request.
        found = self._plain_request(transport, data[len(SESSION_REQUEST) : end])
        if found is None or self._sessions is None:
            self._hand_to_http(connection, transport, data)
        else:
            answer, caller = found
            self._sessions.open(transport, answer, data[end:], caller)

    def _hand_to_http(self, connection: _NewConnection, transport: asyncio.Transport, data: bytes) -> None:
        """Let aiohttp read a connection, from its first byte on."""
        self._pending.discard(connection)
        handler = self._http()
        self._pending.add(handler, client_network_of(transport))
        transport.set_protocol(handler)
        handler.connection_made(transport)
        handler.data_received(data)

    def _make_room(self, handler: web.RequestHandler) -> str:
        """Close another connection over HTTP if there are too many with this one.

        Return an empty text if this connection may stay, or else why not. Only a connection that has shown no token is
        closed: anybody may ask for the coordinator's health, and then keep the connection open.
        """
        present = {
            connection: client_network_of(connection.transport)
            for connection in self._http.connections
            if connection not in self._taken_over
            and connection not in self._pending
            and connection.transport is not None
            and not connection.transport.is_closing()
        }
        self._authenticated.intersection_update(present)
        most, of_address = self._limits.requests, self._limits.requests_per_address
        address = client_network_of(handler.transport)
        if len(present) > most:
            busy = f"there are {most} connections over HTTP already, the limit: try again later"
            rivals = present
        elif len(present) > of_address and Counter(present.values())[address] > of_address:
            busy = f"there are {of_address} connections over HTTP from {address} already, the limit: close some"
            rivals = {connection: at for connection, at in present.items() if at == address}
        else:
            return ""
        spared = self._authenticated | {handler}
        strangers = {connection: at for connection, at in rivals.items() if connection not in spared}
        if self._gatekeeper is None or not strangers:  # without a gatekeeper nobody has a token, so all are spared
            return busy
        [(crowded, _)] = Counter(strangers.values()).most_common(1)
        oldest = next(connection for connection, at in strangers.items() if at == crowded)  # aiohttp lists them by age
        if oldest.transport is not None:
            oldest.transport.abort()
        return ""

    def _plain_request(self, transport: asyncio.Transport, head: bytes) -> tuple[bytes, Caller] | None:
        """Return the answer to nodeclient's request for a session, and the caller.

        Return None if aiohttp must handle the request, because it is unusual, or has to be rejected with a reason.
        """
        headers = headers_of(head)
        if headers is None or "host" not in headers or headers.keys() & UNUSUAL:
            return None
        try:
            answer = answer_to(headers)
            if self._gatekeeper is None:
                return answer, ANYBODY
            # A rejected request is rejected again by `AccessGuard`, which counts it.
            caller = self._gatekeeper.admit_uncounted(headers.get("authorization", ""), Role.JOIN)
        except (HandshakeError, DeniedError):
            return None
        return answer, with_certificate_names(transport, caller)


async def start_runner(app: web.Application, *, idle_s: float, shutdown_s: float) -> web.AppRunner:
    """Set up aiohttp. At its end it waits up to `shutdown_s` for requests, cancels them, and waits as long again."""
    runner = web.AppRunner(
        app,
        access_log=None,
        handler_cancellation=True,  # if the client disconnects
        shutdown_timeout=shutdown_s,
        keepalive_timeout=idle_s,
        max_line_size=LINE_BYTES_MAX,
        max_field_size=LINE_BYTES_MAX,
        max_headers=HEADERS_MAX,
    )
    await runner.setup()
    return runner


class _NewConnection(asyncio.Protocol):
    """A connection that has not sent enough to tell a session from HTTP."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._is_routed = False
        self.transport: asyncio.Transport | None = None
        """The connection; None once it has ended."""
        self.data = b""
        """All bytes received so far."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection."""
        self.transport = cast(asyncio.Transport, transport)
        self._connections.on_made(self, transport)

    def data_received(self, data: bytes) -> None:
        """Route the connection once it has sent enough."""
        self.data += data
        if not self._is_routed and self.transport is not None:
            self._is_routed = self._connections.route(self, self.transport, self.data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection."""
        del exc
        self.transport = None
        self._connections.on_lost(self)

    def force_close(self) -> None:
        """Close the connection at once."""
        if self.transport is not None:
            self.transport.abort()


class _UpgradeTail:
    """Collects the bytes after an upgrade request; aiohttp passes them to it as to a parser."""

    def __init__(self) -> None:
        self.data = bytearray()

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Add bytes; the result tells aiohttp that more may follow."""
        self.data += data
        return False, b""

    def feed_eof(self) -> None:
        """Do nothing at the end of the connection."""


def _answer_to(request: web.Request) -> bytes:
    """Return the answer to a request for a session that aiohttp has read. Raises `HandshakeError`."""
    if request.version < HttpVersion11:
        raise HandshakeError("HTTP/1.0 has no WebSockets: does a proxy use it?")
    return answer_to({name.lower(): ", ".join(request.headers.getall(name)) for name in request.headers})


def with_certificate_names(transport: asyncio.BaseTransport | None, caller: Caller) -> Caller:
    """Return the caller, with the names in its client certificate if its connection has one."""
    connection = transport.get_extra_info("ssl_object") if transport is not None else None
    certificate = connection.getpeercert() if connection is not None else None
    return structs.replace(caller, names=names_of(certificate)) if certificate is not None else caller
