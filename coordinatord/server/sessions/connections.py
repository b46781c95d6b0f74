"""Accepts all connections, and finds out what each of them is: a node's session, or HTTP.

The plain request of a program for a session is answered here, and its connection becomes a `NodeSession`: this way is
short, since 10,000 nodes may come at once. All else is left to aiohttp, from its first byte on. So is a request for a
session with anything unusual about it, such as the `Origin` of a web page; `take_over` receives it from aiohttp. One
such case is common: a proxy reuses its connection to us for a session.

A connection that sends no request is closed: each takes a descriptor, and when these are used up no node can come back.
aiohttp closes a connection that is silent after a request, but not before its first.

A few sessions are begun in each turn of the event loop. The others wait, so that thousands of new ones do not delay the
heartbeats of those that have begun.
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

from coordinatord.core.rounds.queries.master_address import plain
from coordinatord.protocol.access_token import Role
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
from coordinatord.server.sessions.connection_limits import ASK_WITHIN_S, ConnectionLimits, Silent, Unproven
from coordinatord.server.sessions.node_sessions import NodeSessions
from coordinatord.server.sessions.tls_listener import TlsListener, TlsNow, site_of

BACKLOG = 4_096
"""Connections that the kernel accepts ahead of us when a whole cluster starts at once; Linux's own limit since 5.4."""

IDLE_S = 75.0
"""How long a connection over HTTP may be silent between two requests: proxies and programs end theirs after a minute or
less, and the next request opens another."""

FIRST_REQUEST_S = 1.0
"""The greatest age of a connection without a request for which the end of the server waits: a program sends its request
within milliseconds, or within a second on a busy host. An older one was opened ahead, as browsers do."""

LINE_BYTES_MAX = 8_190
"""The longest path of a request, and the longest value of a header."""

HEADERS_MAX = 128
"""The most headers of a request: a browser sends some twenty, and proxies add a few."""

REQUEST_BYTES_MAX = 64 * 1024
"""The most bytes of a request's body: our requests have a name and a sentence."""

BEGUN_AT_ONCE = 256
"""Sessions that are begun without a pause: some 15 ms, and 60 ms with their first messages, which come in a later turn.
With 64 it would be 20 ms, and 1,000 nodes would join a little later, since each turn of the loop costs something."""

SESSION_REQUEST = f"GET {SESSION_PATH} HTTP/1.1\r\n".encode()

UNUSUAL = frozenset({"content-length", "expect", "origin", "transfer-encoding"})
"""Headers that the plain request of a program for a session does not have. A browser always sends `Origin` with a
request for a WebSocket (RFC 6455, 4.1), and is refused by what guards HTTP against web pages."""


AT_FAULT = (HttpProcessingError, ConnectionError, web.RequestPayloadError, UnicodeError)
"""Errors of clients that aiohttp logs: it cannot repeat a text that is none, and it reads the rest of a body that
nobody wants."""


class _BadRequests(logging.Filter):
    """Turns a traceback that aiohttp logs into one quiet line, if the client is at fault."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every other record through unchanged."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, AT_FAULT):
            record.levelno, record.levelname, record.exc_info = logging.DEBUG, "DEBUG", None
            record.msg, record.args = "bad request: %s", (type(error).__name__,)
            record.__dict__.update(fields("bad_request"))
            return logging.getLogger().isEnabledFor(logging.DEBUG)
        return True


_BAD_REQUESTS = _BadRequests()


class Connections:
    """The listening sockets, and all connections without a request so far."""

    def __init__(
        self, sessions: NodeSessions | None, gatekeeper: Gatekeeper | None, limits: ConnectionLimits, tasks: Tasks
    ) -> None:
        """Begin sessions of callers whom the gatekeeper lets in; of everybody if there is none.

        Without `sessions`, as on a standby, each connection is HTTP.
        """
        self._sessions = sessions
        self._gatekeeper = gatekeeper
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._silent = Unproven[Silent](
            ASK_WITHIN_S,
            lambda: limits.silent_beside(0 if sessions is None else sessions.size),
            lambda silent: silent.force_close(),
        )
        self._whole = deque[_NewConnection]()
        """Connections with a whole request for a session, oldest first."""
        self._tasks = tasks
        self._closed = False
        self._servers: list[asyncio.Server | TlsListener] = []
        self._http: web.Server
        self._taken_over: set[web.RequestHandler] = set()
        """The connections that have become sessions: they do not count as connections over HTTP."""
        self._proven: set[web.RequestHandler] = set()
        """The connections over HTTP by which a token was shown, and some that have ended since."""

    async def accept(self, listeners: Iterable[socket.socket], runner: web.AppRunner, tls: TlsNow | None) -> None:
        """Begin to accept connections, for `runner`, which must be set up, and for sessions; with `tls`, over TLS."""
        assert runner.server is not None  # noqa: S101 - it is there after the setup
        self._http = runner.server
        logging.getLogger("aiohttp.server").addFilter(_BAD_REQUESTS)
        loop = asyncio.get_running_loop()
        for listener in listeners:
            if tls is None:
                self._servers.append(await loop.create_server(self._make_connection, sock=listener, backlog=BACKLOG))
            else:
                listener.listen(BACKLOG)
                make, note = self._make_connection, self._note_distrusted
                self._servers.append(TlsListener(listener, tls, make, self._silent, self._tasks, note))

    @web.middleware
    async def note(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Note that a connection has sent a request; raise `HTTPServiceUnavailable` if there is no room for it."""
        if self._silent.discard(request.protocol) and (busy := self._make_room(request.protocol)):
            raise web.HTTPServiceUnavailable(text=busy)
        return await handler(request)

    @web.middleware
    async def note_caller(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Note that a connection has shown a token, so that it is not ended to make room for another."""
        if CALLER.get().token is not None:
            self._proven.add(request.protocol)
        return await handler(request)

    async def take_over(self, request: web.Request) -> web.StreamResponse:
        """Make a session of a connection whose requests aiohttp has read so far; never return while it lasts."""
        try:
            answer = _answer_to(request)
        except HandshakeError as error:
            raise web.HTTPBadRequest(text=str(error), headers=with_reason(str(error))) from error
        assert self._sessions is not None  # noqa: S101 - a standby has no such path
        handler, transport, tail = request.protocol, request.transport, _UpgradeTail()
        if transport is None:
            raise ConnectionResetError
        handler.keep_alive(False)
        handler.set_parser(tail)  # type: ignore[arg-type] # it has the methods of one that aiohttp calls
        # The end of the connection ends the handler as well, and by that this request.
        self._sessions.open(transport, answer, bytes(tail.data), CALLER.get(), handler.connection_lost)
        self._taken_over.add(handler)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._taken_over.discard(handler)
        raise AssertionError

    async def drain(self) -> None:
        """Stop accepting, and wait for the requests of connections that were accepted a moment ago.

        Their clients would take the end for a refusal, though systemd keeps the listening socket for the next daemon.
        """
        self._stop_accepting()
        await self._silent.await_young(FIRST_REQUEST_S)

    def close(self) -> None:
        """Stop accepting, and end the connections without an answer so far.

        The process may go on, as a standby or as the leader, and would never answer them.
        """
        self._closed = True
        self._stop_accepting()
        for waiting in [*self._silent, *self._whole]:
            waiting.force_close()
        self._silent.close()
        self._whole.clear()

    def _stop_accepting(self) -> None:
        while self._servers:
            self._servers.pop().close()

    def _make_connection(self) -> _NewConnection:
        return _NewConnection(self)

    def _note_distrusted(self, reason: str, peer: str) -> None:
        if self._gatekeeper is not None:
            self._gatekeeper.record_distrusted(reason, plain(peer))

    # For a new connection

    def note_made(self, connection: _NewConnection, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for the request of a connection; end one that was accepted after `close`."""
        if self._closed:
            connection.force_close()
            return
        self._silent.add(connection, site_of(transport))

    def note_lost(self, connection: _NewConnection) -> None:
        """Note that a connection has ended without a request."""
        self._silent.discard(connection)

    def recognize(self, connection: _NewConnection, transport: asyncio.Transport, data: bytes) -> bool:
        """Hand a connection over, at once or in its turn, once its `data` show to whom; return whether they do."""
        if self._sessions is None or not SESSION_REQUEST.startswith(data[: len(SESSION_REQUEST)]):
            self._hand_to_http(connection, transport, data)
            return True
        if data.find(END_OF_HEAD, 0, HEAD_BYTES_MAX) < 0 and len(data) < HEAD_BYTES_MAX:
            return False
        self._silent.discard(connection)
        transport.pause_reading()
        if not self._whole:
            self._loop.call_soon(self._begin_some)
        self._whole.append(connection)
        return True

    def _begin_some(self) -> None:
        for _ in range(min(BEGUN_AT_ONCE, len(self._whole))):
            connection = self._whole.popleft()
            if connection.transport is not None:
                connection.transport.resume_reading()
                self._begin(connection, connection.transport, connection.data)
        if self._whole:
            self._loop.call_soon(self._begin_some)

    def _begin(self, connection: _NewConnection, transport: asyncio.Transport, data: bytes) -> None:
        end = data.find(END_OF_HEAD, 0, HEAD_BYTES_MAX) + len(END_OF_HEAD)
        found = self._plain_request(transport, data[len(SESSION_REQUEST) : end])
        if found is None or self._sessions is None:
            self._hand_to_http(connection, transport, data)
        else:
            answer, caller = found
            self._sessions.open(transport, answer, data[end:], caller)

    def _hand_to_http(self, connection: _NewConnection, transport: asyncio.Transport, data: bytes) -> None:
        self._silent.discard(connection)
        handler = self._http()
        self._silent.add(handler, site_of(transport))
        transport.set_protocol(handler)
        handler.connection_made(transport)
        handler.data_received(data)

    def _make_room(self, handler: web.RequestHandler) -> str:
        """End another connection if this one over HTTP, which is counted already, is one too many.

        A connection without a token makes room for others, since everybody may read the health of a coordinator and
        then keep the connection. Return why there is no room; empty if there is.
        """
        others = {
            connection: site_of(connection.transport)
            for connection in self._http.connections
            if connection not in self._taken_over
            and connection not in self._silent
            and connection.transport is not None
            and not connection.transport.is_closing()
        }
        self._proven.intersection_update(others)
        most, of_address = self._limits.requests, self._limits.requests_of_address
        address = site_of(handler.transport)
        if len(others) > most:
            busy = f"there are {most} connections over HTTP already, the limit: try again later"
            rivals = others
        elif len(others) > of_address and Counter(others.values())[address] > of_address:
            busy = f"there are {of_address} connections over HTTP from {address} already, the limit: close some"
            rivals = {connection: at for connection, at in others.items() if at == address}
        else:
            return ""
        if self._gatekeeper is None:
            return busy
        spared = self._proven | {handler}
        strangers = {connection: at for connection, at in rivals.items() if connection not in spared}
        if not strangers:
            return busy
        [(crowded, _)] = Counter(strangers.values()).most_common(1)
        oldest = next(connection for connection, at in strangers.items() if at == crowded)
        if oldest.transport is not None:
            oldest.transport.abort()
        return ""

    def _plain_request(self, transport: asyncio.Transport, head: bytes) -> tuple[bytes, Caller] | None:
        """Return the answer to a program's plain request for a session, and the caller.

        Return None if aiohttp has to handle the request. It also refuses callers who are not let in.
        """
        headers = headers_of(head)
        if headers is None or "host" not in headers or headers.keys() & UNUSUAL:
            return None
        try:
            answer = answer_to(headers)
            if self._gatekeeper is None:
                return answer, ANYBODY
            caller = self._gatekeeper.recognize(headers.get("authorization", ""), Role.JOIN)
        except (HandshakeError, DeniedError):
            return None
        return answer, shown_by(transport, caller)


class _NewConnection(asyncio.Protocol):
    """A connection that has not sent enough to show what it is."""

    __slots__ = ("_connections", "_is_known", "data", "transport")

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._is_known = False
        self.transport: asyncio.Transport | None = None
        """The connection; None once it has ended."""
        self.data = b""
        """What the connection has sent."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast(asyncio.Transport, transport)
        self._connections.note_made(self, transport)

    def data_received(self, data: bytes) -> None:
        """Look at what it has sent so far."""
        self.data += data
        if not self._is_known and self.transport is not None:
            self._is_known = self._connections.recognize(self, self.transport, self.data)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        del exc
        self.transport = None
        self._connections.note_lost(self)

    def force_close(self) -> None:
        """End the connection."""
        if self.transport is not None:
            self.transport.abort()


class _UpgradeTail:
    """What has arrived after a request to upgrade, as aiohttp hands it over."""

    def __init__(self) -> None:
        self.data = bytearray()

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Take what has arrived; it is not the end."""
        self.data += data
        return False, b""

    def feed_eof(self) -> None:
        """Take note of the end of the connection."""


def _answer_to(request: web.Request) -> bytes:
    """Return the answer to a request for a session that aiohttp has read. Raises `HandshakeError`."""
    if request.version < HttpVersion11:
        raise HandshakeError("HTTP/1.0 has no WebSockets: does a proxy use it?")
    return answer_to({name.lower(): ", ".join(request.headers.getall(name)) for name in request.headers})


CALLER: ContextVar[Caller] = ContextVar("caller")
"""Who has sent the request that is being handled."""


def shown_by(transport: asyncio.BaseTransport | None, caller: Caller) -> Caller:
    """Return a caller with the names in the certificate of its connection, if it had to show one."""
    connection = transport.get_extra_info("ssl_object") if transport is not None else None
    certificate = connection.getpeercert() if connection is not None else None
    return structs.replace(caller, names=names_of(certificate)) if certificate is not None else caller
