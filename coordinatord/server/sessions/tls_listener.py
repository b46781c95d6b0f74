"""Accepts connections over TLS, and limits their number from before the handshake on.

asyncio could accept them, but reports a connection only after its handshake. So a client that opens connections and
sends nothing could use up the descriptors.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from coordinatord.runtime.logs import fields
from coordinatord.runtime.pinned_tls import send_alert
from coordinatord.runtime.tasks import Tasks
from coordinatord.security.gatekeeper import client_network
from coordinatord.server.sessions.connection_limits import REQUEST_WITHIN_S, Closable, PendingConnections

log = logging.getLogger(__name__)

ACCEPTED_AT_ONCE = 64
"""Connections that are accepted in one turn of the event loop: they delay a heartbeat by some milliseconds."""

PAUSE_S = 0.1
"""The pause in accepting after an error, mostly for want of a free descriptor; the kernel queues connections
meanwhile."""

WARN_EVERY_S = 60.0
"""The least time between two warnings about such pauses, which may go on for hours."""

CERTIFICATE_ERRORS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client has shown no certificate, and --tls-client-ca wants one",
    "CERTIFICATE_VERIFY_FAILED": "the certificate of the client is not to be trusted",
}
"""Our texts for OpenSSL's reasons to reject a client's certificate."""

TlsProvider = Callable[[], ssl.SSLContext]
"""Returns the TLS context of a new connection. A reload may have changed it, such as the authorities of clients."""


@dataclass(eq=False)
class TlsListener:
    """Accepts the connections of one listening socket, from its construction on."""

    _listener: socket.socket
    _tls: TlsProvider
    _make_protocol: Callable[[], asyncio.Protocol]
    """Returns the protocol of a connection after its handshake."""
    _pending: PendingConnections[Closable]
    """Limits the connections in a handshake."""
    _tasks: Tasks
    _record_bad_certificate: Callable[[str, str], None]
    """Gets the reason why a client's certificate was rejected, and the client's address."""
    _pause: asyncio.TimerHandle | None = None
    _warned_at: float | None = None
    """When it last warned that connections have to wait; None if it never did."""

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def close(self) -> None:
        """Stop accepting."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted, address = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._pause_accepting(error)
                return
            accepted.setblocking(False)
            handshake = _Handshake(accepted)
            self._pending.add(handshake, client_network(str(address[0])))
            handshake.task = self._tasks.spawn(self._shake_hands(handshake, accepted, str(address[0])), name="tls")

    def _pause_accepting(self, error: OSError) -> None:
        """Stop accepting for `PAUSE_S`: the system lacks resources, or the connection broke early."""
        now = self._loop.time()
        if self._warned_at is None or now - self._warned_at >= WARN_EVERY_S:
            self._warned_at = now
            text = "new connections have to wait, again and again for %g s: %s"
            log.warning(text, PAUSE_S, error.strerror, extra=fields("accept_paused"))
        self._loop.remove_reader(self._listener.fileno())
        self._pause = self._loop.call_later(PAUSE_S, self._resume_accepting)

    def _resume_accepting(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener.fileno(), self._accept)

    async def _shake_hands(self, handshake: _Handshake, accepted: socket.socket, peer: str) -> None:
        handshake.has_begun = True
        send_alert.set(accepted.send)  # asyncio would not tell the peer why a handshake fails
        try:
            await self._loop.connect_accepted_socket(
                self._make_protocol, accepted, ssl=self._tls(), ssl_handshake_timeout=REQUEST_WITHIN_S
            )
        except OSError as error:  # the peer does not use TLS, takes too long, or went away
            log.debug("TLS was not agreed on: %s", error, extra=fields("tls_failed"))
            if isinstance(error, ssl.SSLError) and error.reason in CERTIFICATE_ERRORS:
                detail = f": {error.verify_message}" if isinstance(error, ssl.SSLCertVerificationError) else ""
                self._record_bad_certificate(f"{CERTIFICATE_ERRORS[error.reason]}{detail}", peer)
        finally:
            self._pending.discard(handshake)


class _Handshake:
    """A connection before the end of its TLS handshake."""

    def __init__(self, accepted: socket.socket) -> None:
        self._accepted = accepted
        self.task: asyncio.Task[None] | None = None
        """The task of the handshake."""
        self.has_begun = False
        """Whether the task has begun: from then on asyncio closes the socket when the task is cancelled."""

    def force_close(self) -> None:
        """Close the connection at once."""
        if self.task is not None:
            self.task.cancel()
        if not self.has_begun:
            self._accepted.close()


def client_network_of(transport: asyncio.BaseTransport | None) -> str:
    """Return the client's network, as `client_network` does; empty if the connection has no address."""
    name = transport.get_extra_info("peername") if transport is not None else None
    return client_network(str(name[0])) if name else ""
