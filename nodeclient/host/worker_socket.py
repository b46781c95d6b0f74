"""Unix sockets to which workers connect, to exchange packets. They accept only processes of this user.

There are three in a round: for kept state, for rounds in place, and for questions where a worker stands.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from nodeclient.host.ports import Acceptor
from workerlib.contract.packets import PACKET_BYTES, ChannelError, Message, PacketCodec
from workerlib.responder import address

BACKLOG = 128
"""The backlog: more than the workers of a node, which may all connect at once."""

UNSENT_MAX = 1_024
"""The most packets that wait for a worker. A worker with more has stopped reading."""

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
    unsent: deque[tuple[bytes, tuple[int, ...]]] = field(default_factory=deque)
    """The packets that the socket does not take yet, each with duplicates of the caller's descriptors."""


C = TypeVar("C", bound=Connection)


class WorkerSocket(Generic[C]):
    """A listening socket, and its connections, which outlive it; all methods are for the running event loop."""

    def __init__(self, name: str, connect: Callable[[socket.socket, int], C], on_packet: Callable[[C], None]) -> None:
        """Begin without a socket; `name` will be that of its file.

        `connect` makes the record of a connection, with the process id of the peer. `on_packet` is called while there
        is a packet to read, or the end of the connection.
        """
        self._name = name
        self._connect = connect
        self._on_packet = on_packet
        self._loop = asyncio.get_running_loop()
        self._acceptor: Acceptor | None = None
        self._most = 0
        """The limit of connections."""
        self.connections: set[C] = set()
        """The open connections."""

    @property
    def is_open(self) -> bool:
        """Whether more workers may connect."""
        return self._acceptor is not None

    def listen(self, folder: Path, workers: int) -> str:
        """Listen in `folder`, and no longer in the last one, for so many `workers`; return the path. Raises `OSError`.

        A long path needs `workerlib.responder.address` to bind or connect.
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
        self._most = 2 * workers  # a worker may connect again before its old connection is closed
        self._acceptor = Acceptor(listener, self._accept)
        return str(path)

    def forget(self, connection: C) -> None:
        """Close a connection, and drop the packets that it has not taken yet."""
        self.connections.discard(connection)
        self._loop.remove_reader(connection.socket)
        self._loop.remove_writer(connection.socket)
        connection.socket.close()
        for _, fds in connection.unsent:
            _close(fds)

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


class MessageSocket(WorkerSocket[C], Generic[C, Message]):
    """A socket for messages of one type, `Message`. Memory and files go to a worker as descriptors in a packet."""

    def __init__(
        self,
        name: str,
        codec: PacketCodec[Message],
        connect: Callable[[socket.socket, int], C],
        on_message: Callable[[C, Message], None],
        on_end: Callable[[C], None],
    ) -> None:
        """Begin without a socket, as a `WorkerSocket`.

        `on_message` gets each message. `on_end` gets a connection that was ended, perhaps within a call of `send`.
        """
        super().__init__(name, connect, self._receive)
        self._codec = codec
        self._on_message = on_message
        self._on_end = on_end

    def send(self, connection: C, message: Message, fds: Sequence[int] = ()) -> None:
        """Send a packet, with duplicates of the descriptors.

        If the system is short of descriptors, the connection is ended, because a worker needs every packet.
        """
        duplicates = _duplicates(fds)
        if duplicates is None:
            self.end(connection)
        else:
            connection.unsent.append((self._codec.encode(message), duplicates))
            self._flush(connection)

    def end(self, connection: C) -> None:
        """Close a connection that is over or has failed, and give it to `on_end`."""
        self.forget(connection)
        self._on_end(connection)

    def _receive(self, connection: C) -> None:
        packet = receive_packet(connection.socket)
        if packet is None:
            return
        try:
            message = self._codec.decode(packet)
        except ChannelError:  # the worker is gone, so the packet is empty; or this is no worker
            self.end(connection)
        else:
            self._on_message(connection, message)

    def _flush(self, connection: C) -> None:
        try:
            while connection.unsent:
                packet, fds = connection.unsent[0]
                socket.send_fds(connection.socket, [packet], fds, socket.MSG_NOSIGNAL)
                connection.unsent.popleft()
                _close(fds)
        except BlockingIOError:
            if len(connection.unsent) > UNSENT_MAX:
                self.end(connection)
            else:
                self._loop.add_writer(connection.socket, self._flush, connection)
        except OSError:
            self.end(connection)
        else:
            self._loop.remove_writer(connection.socket)


def _duplicates(fds: Sequence[int]) -> tuple[int, ...] | None:
    """Return duplicates of descriptors; None if the system refuses one."""
    made: list[int] = []
    try:
        for fd in fds:
            made.append(os.dup(fd))  # noqa: PERF401 - those that were made are closed if one is refused
    except OSError:
        _close(made)
        return None
    return tuple(made)


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


def receive_packet(connection: socket.socket) -> bytes | None:
    """Return the next packet; None if there is none yet, empty if the peer is gone or has sent too long a packet.

    There is no buffer for descriptors, so the kernel closes those that come along.
    """
    try:
        packet, _, flags, _ = connection.recvmsg(PACKET_BYTES)
    except BlockingIOError:
        return None
    except OSError:
        return b""
    return b"" if flags & socket.MSG_TRUNC else packet
