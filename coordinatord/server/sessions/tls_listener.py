"""Accepts connections over TLS: each is counted before its handshake, and may be ended until that is done.

The event loop could accept them by itself. It would show a connection only after the handshake, so a client that opens
connections and sends nothing could take any number of descriptors and buffers.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import socket
import ssl
from collections.abc import Callable

from coordinatord.runtime.logs import fields
from coordinatord.runtime.pinned_tls import send_alert
from coordinatord.runtime.tasks import Tasks
from coordinatord.security.gatekeeper import site
from coordinatord.server.sessions.connection_limits import ASK_WITHIN_S, Silent, Unproven

log = logging.getLogger(__name__)

AT_ONCE = 64
"""Connections that are accepted before the loop does something else: a heartbeat waits for some milliseconds."""

PAUSE_S = 0.1
"""The pause in accepting when the system has no descriptor left; the kernel queues connections meanwhile."""

COMPLAIN_EVERY_S = 60.0
"""The least time between two lines about that: it may last for hours."""

NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

OF_THE_CONNECTION = frozenset(
    {
        errno.ECONNABORTED,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENONET,
        errno.ENOPROTOOPT,
        errno.EOPNOTSUPP,
        errno.EPERM,
        errno.EPROTO,
    }
)
"""Errors of a connection that was broken before it was accepted, or that a firewall forbids: accept(2) of Linux
reports them, and the listening socket is as good as before."""

DISTRUSTED = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client has shown no certificate, and --tls-client-ca wants one",
    "CERTIFICATE_VERIFY_FAILED": "the certificate of the client is not to be trusted",
}
"""OpenSSL's reasons for which a client is sent away in the handshake because of its certificate, in words."""

TlsNow = Callable[[], ssl.SSLContext]
"""Returns the TLS context of a new connection. A reload may have changed it, such as the authorities of clients."""


class TlsListener:
    """One listening socket."""

    def __init__(
        self,
        listener: socket.socket,
        tls: TlsNow,
        make_protocol: Callable[[], asyncio.Protocol],
        silent: Unproven[Silent],
        tasks: Tasks,
        record_distrusted: Callable[[str, str], None],
    ) -> None:
        """Begin to accept. `tls` returns the context of a handshake, and `make_protocol` the protocol after it.

        `record_distrusted` takes why a client's certificate does not count, and the client's address.
        """
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._tls = tls
        self._make_protocol = make_protocol
        self._silent = silent
        self._tasks = tasks
        self._note_distrusted = record_distrusted
        self._pause: asyncio.TimerHandle | None = None
        self._complained_at = -math.inf
        listener.setblocking(False)
        self._loop.add_reader(listener.fileno(), self._accept)

    def close(self) -> None:
        """Accept no more."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                accepted, address = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in OF_THE_CONNECTION:
                    continue
                if error.errno not in NO_DESCRIPTOR:
                    raise
                self._rest(error)
                return
            accepted.setblocking(False)
            stranger = _Stranger(accepted)
            self._silent.add(stranger, site(str(address[0])))
            stranger.handshake = self._tasks.spawn(self._shake_hands(stranger, accepted, str(address[0])), name="tls")

    def _rest(self, error: OSError) -> None:
        """Accept nobody for a moment."""
        if self._loop.time() - self._complained_at >= COMPLAIN_EVERY_S:
            self._complained_at = self._loop.time()
            text = "new connections have to wait, again and again for %g s: %s"
            log.warning(text, PAUSE_S, error.strerror, extra=fields("accept_paused"))
        self._loop.remove_reader(self._listener.fileno())
        self._pause = self._loop.call_later(PAUSE_S, self._go_on)

    def _go_on(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener.fileno(), self._accept)

    async def _shake_hands(self, stranger: _Stranger, accepted: socket.socket, peer: str) -> None:
        stranger.begun = True
        send_alert.set(accepted.send)
        try:
            await self._loop.connect_accepted_socket(
                self._make_protocol, accepted, ssl=self._tls(), ssl_handshake_timeout=ASK_WITHIN_S
            )
        except OSError as error:  # the peer does not use TLS, takes too long, or went away
            log.debug("TLS was not agreed on: %s", error, extra=fields("tls_failed"))
            if isinstance(error, ssl.SSLError) and error.reason in DISTRUSTED:
                detail = f": {error.verify_message}" if isinstance(error, ssl.SSLCertVerificationError) else ""
                self._note_distrusted(f"{DISTRUSTED[error.reason]}{detail}", peer)
        finally:
            self._silent.discard(stranger)


class _Stranger:
    """A connection before the end of its TLS handshake."""

    __slots__ = ("_accepted", "begun", "handshake")

    def __init__(self, accepted: socket.socket) -> None:
        self._accepted = accepted
        self.handshake: asyncio.Task[None] | None = None
        self.begun = False
        """Whether the event loop owns the socket."""

    def force_close(self) -> None:
        """End the connection."""
        if self.handshake is not None:
            self.handshake.cancel()
        if not self.begun:
            self._accepted.close()


def site_of(transport: asyncio.BaseTransport | None) -> str:
    """Return the part of its address by which a connection is counted; empty if it has none."""
    name = transport.get_extra_info("peername") if transport is not None else None
    return site(str(name[0])) if name else ""
