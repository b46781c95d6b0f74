"""Reserves a node's port for MASTER_PORT, and opens listening sockets and accepts their connections.

Each node offers a port before it is known which one is the master of a round. So it reserves one all the time.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
from collections.abc import Callable
from typing import Any

from nodeclient.host.addresses import interface_of

LOOPBACK = "127.0.0.1"

ACCEPTS_MAX = 256
"""The most connections that are accepted at a time, so that heartbeats get their turn."""

PAUSE_S = 1.0
"""The pause while the system lacks descriptors or memory. Without it the event loop would retry at once, because the
socket stays readable."""

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""The errors of accept(2) for lack of descriptors or memory."""


def listening_address(advertised: str | None, *, standalone: bool) -> str:
    """Return the address of this host to listen at for other agents; empty for all addresses.

    Agents connect to the `advertised` address, or else to the one by which the coordinator knows this node. The
    coordinator knows it by loopback if all nodes are on one host. Only a `standalone` node knows that they are.
    """
    if advertised is None:
        return LOOPBACK if standalone else ""
    if ipaddress.ip_address(advertised.partition("%")[0]).is_loopback:
        return advertised if standalone else ""  # agents of other hosts get another address
    if not interface_of(advertised):
        return ""  # it may be the address of a router, which forwards to this host
    return advertised


def listening_socket(address: str, backlog: int) -> socket.socket:
    """Return a socket that listens at a free port of `address`, or of all addresses if empty. Raises `OSError`."""
    dual = not address and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual or ":" in address else socket.AF_INET
    listener = socket.create_server((address, 0), family=family, backlog=backlog, dualstack_ipv6=dual)
    listener.setblocking(False)
    return listener


class Acceptor:
    """Accepts the connections of a listening socket in the running loop, until `close`."""

    def __init__(
        self,
        listener: socket.socket,
        on_connection: Callable[[socket.socket, Any], None],
        *,
        at_once: int = ACCEPTS_MAX,
    ) -> None:
        """Begin; `on_connection` gets each connection and its peer's address. The connection does not block.

        `on_connection` has to close it. At most `at_once` are accepted in a turn of the loop.
        """
        self._listener = listener
        self._on_connection = on_connection
        self._at_once = at_once
        self._loop = asyncio.get_running_loop()
        self._resuming: asyncio.TimerHandle | None = None
        """The timer that ends a pause; None without a pause."""
        self._resume()

    def close(self) -> None:
        """Close the socket; further calls do nothing. Accepted connections stay open."""
        if self._resuming is not None:
            self._resuming.cancel()
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)
            self._listener.close()

    def _resume(self) -> None:
        self._resuming = None
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(self._at_once):
            try:
                connection, peer = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    continue  # the peer has gone
                self._loop.remove_reader(self._listener)
                self._resuming = self._loop.call_later(PAUSE_S, self._resume)
                return
            connection.setblocking(False)
            self._on_connection(connection, peer)


class PortReservation:
    """A TCP port that the kernel gives to no process that asks for any free port, until `close`.

    A socket is bound to it with SO_REUSEADDR and does not listen. So the kernel never chooses the port for another
    process's bind to port 0 or for an outgoing connection. A process that asks for this very port with SO_REUSEADDR
    gets it: Linux lets such sockets share a port while none of them listens. torch's TCPStore does just that on rank 0
    (with libuv and without). So the reservation lasts for the whole round, and the port is never free in between.

    Raises `OSError` if the port is taken, or no port is free.
    """

    def __init__(self, port: int = 0) -> None:
        """Reserve a port, or any free one."""
        # TCPStore listens on :: if there is IPv6, and the reservation has to cover the same addresses.
        dual = socket.has_dualstack_ipv6()
        self._socket = socket.socket(socket.AF_INET6 if dual else socket.AF_INET)
        try:
            if dual:
                self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(("", port))
            self.port: int = self._socket.getsockname()[1]
        except OSError:
            self._socket.close()
            raise

    def close(self) -> None:
        """Release the port; further calls do nothing."""
        self._socket.close()
