"""A Unix socket to which workers connect, to exchange packets. It accepts only processes of this user."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path

from workerlib.contract.packets import PACKET_BYTES
from workerlib.responder import address

BACKLOG = 128
"""The backlog: more than the workers of a node, which may all connect at once."""

ACCEPT_AGAIN_S = 1.0
"""The pause after a failed accept, such as for lack of descriptors. Without it the event loop would retry at once,
because the socket stays readable."""

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
        self._loop = asyncio.get_running_loop()
        self._resuming: asyncio.TimerHandle | None = None
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self.path = str(folder / name)
        """The path of the socket, by `workerlib.responder.address`."""
        try:
            Path(self.path).unlink(missing_ok=True)  # the socket of an earlier round
            with address(self.path) as short:
                self._listener.bind(short)
            self._listener.listen(BACKLOG)
        except BaseException:
            self.close()
            raise
        self._resume()

    def close(self) -> None:
        """Stop accepting connections; existing ones stay open."""
        if self._resuming is not None:
            self._resuming.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()

    def _resume(self) -> None:
        self._resuming = None
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):  # the peer has closed its end
            return
        except OSError:
            self._loop.remove_reader(self._listener)
            self._resuming = self._loop.call_later(ACCEPT_AGAIN_S, self._resume)
            return
        pid, user, _ = _CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        if user != os.geteuid():
            connection.close()
            return
        connection.setblocking(False)
        self._on_connection(connection, pid)


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
