"""A Unix socket to which workers connect, to exchange packets. It accepts only processes of this user.

There are three in a round: for kept state, for rounds in place, and for questions where a worker stands.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path

from nodeclient.host.ports import Acceptor
from workerlib.contract.packets import PACKET_BYTES
from workerlib.responder import address

BACKLOG = 128
"""The backlog: more than the workers of a node, which may all connect at once."""

_CREDENTIALS = struct.Struct("3i")
"""The process id, the user and the group of a peer, `struct ucred` in unix(7)."""


class WorkerSocket:
    """A socket that listens until it is closed; all methods are for the running event loop."""

    def __init__(self, folder: Path, name: str, on_connection: Callable[[socket.socket, int], None]) -> None:
        """Listen under a name in a folder. Raises `OSError`.

        `on_connection` gets each connection with the process id of the peer. The connection does not block, and
        `on_connection` has to close it.
        """
        self._on_connection = on_connection
        self.path = str(folder / name)
        """The path of the socket. A long one needs `workerlib.responder.address` to bind or connect."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            Path(self.path).unlink(missing_ok=True)  # the socket of an earlier round
            with address(self.path) as short:
                listener.bind(short)
            listener.listen(BACKLOG)
        except BaseException:
            listener.close()
            raise
        self._acceptor = Acceptor(listener, self._accept)

    def close(self) -> None:
        """Stop accepting connections; existing ones stay open."""
        self._acceptor.close()

    def _accept(self, connection: socket.socket) -> None:
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, user, _ = _CREDENTIALS.unpack(credentials)
        if user == os.geteuid():
            self._on_connection(connection, pid)
        else:
            connection.close()


def receive_packet(connection: socket.socket) -> bytes | None:
    """Return the next packet; None if there is none yet. It is empty if the peer is gone, or has sent too long a one.

    There is no buffer for descriptors, so the kernel closes those that come along.
    """
    try:
        packet, _, flags, _ = connection.recvmsg(PACKET_BYTES)
    except BlockingIOError:
        return None
    except OSError:
        return b""
    return b"" if flags & socket.MSG_TRUNC else packet
