"""The worker's end of its connection to nodeclient, see `channel_messages`."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

from workerlib.contract.channel_messages import DESCRIPTORS_MAX, Message, decode, encode
from workerlib.contract.packets import PACKET_BYTES, ChannelError
from workerlib.responder import address

CLOSED = "it has closed the connection, and takes only one from each worker of its round"
"""Why nodeclient says nothing any more."""


class AgentChannel:
    """A connection to the nodeclient of this host. It may be used from several threads."""

    def __init__(self, path: str) -> None:
        """Connect. Raises `OSError`."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with address(path) as short:
                self._socket.connect(short)
        except OSError:
            self._socket.close()
            raise

    def send(self, message: Message) -> None:
        """Send a message; never wait. Raises `OSError`, also if nodeclient does not read."""
        self._socket.send(encode(message), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def report(self, message: Message) -> None:
        """Send a message, unless nodeclient is gone: its workers end as well then."""
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
        """End the connection: a thread that waits for a message gets no more."""
        with suppress(OSError):  # nodeclient has ended it
            self._socket.shutdown(socket.SHUT_RDWR)

    def abandon(self) -> None:
        """Close the descriptor. If this is a forked child, its parent keeps the connection."""
        self._socket.close()


def _message_in(packet: bytes, flags: int) -> Message:
    if flags & socket.MSG_CTRUNC:
        raise ChannelError("this process cannot open more files: raise ulimit -n")
    if not packet or flags & socket.MSG_TRUNC:
        raise ChannelError(CLOSED)
    return decode(packet)
