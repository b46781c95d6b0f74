"""The worker's end of the connection to nodeclient about kept state; `channel_messages` has its messages."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

from workerlib.contract.channel_messages import DESCRIPTORS_MAX, Message, decode, encode
from workerlib.contract.packets import PACKET_BYTES, ChannelError
from workerlib.responder import connected_socket

CLOSED = "it has closed the connection, and takes only one from each worker of its round"
"""The text of the error when nodeclient has closed the connection."""


class AgentChannel:
    """A connection to the nodeclient of this host, which several threads may use."""

    def __init__(self, path: str) -> None:
        """Connect. Raises `OSError`."""
        self._socket = connected_socket(path)

    def send(self, message: Message) -> None:
        """Send a message without waiting. Raises `OSError`, also if nodeclient does not read."""
        self._socket.send(encode(message), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def report(self, message: Message) -> None:
        """Send a message, and ignore errors: if nodeclient is gone, its workers are ended as well."""
        with suppress(OSError):
            self.send(message)

    def receive(self) -> tuple[Message, list[int]]:
        """Wait for a message; return it with its descriptors. Raises `OSError`, and `ChannelError` at the end."""
        packet, files, flags, _ = socket.recv_fds(self._socket, PACKET_BYTES, DESCRIPTORS_MAX)
        try:
            return _message_in(packet, flags), files
        except ChannelError:
            for file in files:
                os.close(file)
            raise

    def end(self) -> None:
        """End the connection; `receive` then raises in the thread that waits in it."""
        with suppress(OSError):  # nodeclient has ended it
            self._socket.shutdown(socket.SHUT_RDWR)

    def abandon(self) -> None:
        """Close the descriptor; in a forked child, the parent keeps the connection."""
        self._socket.close()


def _message_in(packet: bytes, flags: int) -> Message:
    if flags & socket.MSG_CTRUNC:
        raise ChannelError("this process cannot open more files: raise ulimit -n")
    if not packet or flags & socket.MSG_TRUNC:
        raise ChannelError(CLOSED)
    return decode(packet)
