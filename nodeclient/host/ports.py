"""Reserves the port that becomes MASTER_PORT, should this node get group rank 0."""

from __future__ import annotations

import socket


class PortReservation:
    """A TCP port that the kernel does not hand out to any process that asks for a free port, until `close`.

    It is held by a socket that is bound and does not listen, with SO_REUSEADDR. The kernel therefore never chooses the
    port for another process's bind to port 0 or for an outgoing connection. A process that asks for this very port, and
    sets SO_REUSEADDR too, gets it: Linux lets such sockets share a port while none of them listens. torch's TCPStore
    does just that on rank 0 (with libuv and without), so the reservation is kept all the round, and the port is never
    free in between.

    Raises `OSError` if no port is free.
    """

    def __init__(self) -> None:
        # TCPStore listens on :: where there is IPv6, and the reservation has to cover the same addresses.
        if socket.has_dualstack_ipv6():
            self._socket = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
            self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        else:
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(("", 0))
            self.port: int = self._socket.getsockname()[1]
        except OSError:
            self._socket.close()
            raise

    def close(self) -> None:
        """Release the port; further calls do nothing."""
        self._socket.close()
