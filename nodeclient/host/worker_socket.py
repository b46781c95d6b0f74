"""Unix sockets to which workers connect, to exchange packets. They accept only processes of this user.

There are three in a round: for kept state, for rounds in place, and for questions where a worker stands.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from nodeclient.host.ports import Acceptor
from workerlib.contract.packets import PACKET_BYTES
from workerlib.responder import address

BACKLOG = 128
"""The backlog: more than the workers of a node, which may all connect at once."""

_CREDENTIALS = struct.Struct("3i")
"""The process id, the user and the group of a peer, `struct ucred` in unix(7)."""


@dataclass(slots=True, eq=False)
class Connection:
    """A connection to a process of this user, which may be any program."""

    socket: socket.socket
    """It does not block."""
    pid: int
    local_rank: int | None = None
    """None before the process has said which worker it is."""


C = TypeVar("C", bound=Connection)


class WorkerSocket(Generic[C]):
    """A socket with its connections, which outlive it; all methods are for the running event loop."""

    def __init__(self, name: str, connect: Callable[[socket.socket, int], C], on_packet: Callable[[C], None]) -> None:
        """Begin without a socket; it gets a name in a folder.

        `connect` makes the record of a connection, with the process id of the peer. `on_packet` is called while there
        is a packet to read, or the end of the connection.
        """
        self._name = name
        self._connect = connect
        self._on_packet = on_packet
        self._loop = asyncio.get_running_loop()
        self._acceptor: Acceptor | None = None
        self._most = 0
        self.connections: set[C] = set()
        """The open connections."""

    @property
    def is_open(self) -> bool:
        """Whether more workers may connect."""
        return self._acceptor is not None

    def listen(self, folder: Path, workers: int) -> str:
        """Accept the connections of so many workers, below a folder instead of the last one. Raises `OSError`.

        Return the path. A long one needs `workerlib.responder.address` to bind or connect.
        """
        self._stop_listening()
        path = folder / self._name
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            path.unlink(missing_ok=True)  # the socket of an earlier round
            with address(str(path)) as short:
                listener.bind(short)
            listener.listen(BACKLOG)
        except BaseException:
            listener.close()
            raise
        self._most = 2 * workers
        self._acceptor = Acceptor(listener, self._accept)
        return str(path)

    def forget(self, connection: C) -> None:
        """Close a connection."""
        self.connections.discard(connection)
        self._loop.remove_reader(connection.socket)
        connection.socket.close()

    def close(self) -> None:
        """Stop accepting connections, and close all."""
        self._stop_listening()
        for connection in list(self.connections):
            self.forget(connection)

    def _stop_listening(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None

    def _accept(self, accepted: socket.socket, _: object) -> None:
        credentials = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, user, _ = _CREDENTIALS.unpack(credentials)
        # Strangers must not use up the descriptors of this process.
        if user != os.geteuid() or len(self.connections) >= self._most:
            accepted.close()
            return
        connection = self._connect(accepted, pid)
        self.connections.add(connection)
        self._loop.add_reader(accepted, self._on_packet, connection)


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
