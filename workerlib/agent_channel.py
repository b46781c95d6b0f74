"""A channel of this worker to the nodeclient of its host: a connection over which both send packets.

There are two kinds: that of `keeping.keep_channel` is about kept state, that of `reuse.reused_worker` about the next
round of this process. `contract` has the messages of each. nodeclient waits for no answer of a worker whose connection
has ended. When a worker dies, its connection ends only if no other process has it open. So a forked child, such as a
data loader's process, closes its copy.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any, Generic

from workerlib.contract.channel_messages import DESCRIPTORS_MAX
from workerlib.contract.packets import PACKET_BYTES, ChannelError, ClosedError, Message, PacketCodec
from workerlib.responder import connected_socket

LOG = logging.getLogger(__name__)

CLOSED = "it has closed the connection, and takes only one from each worker of its round"
"""The text of the error when nodeclient has closed the connection. That is how it refuses a process that a worker has
started, or one that is left of an earlier round."""


class AgentChannel(Generic[Message]):
    """A channel that several threads may use. It is this process's: a forked child closes its copy."""

    def __init__(self, path: str, codec: PacketCodec[Message], hello: Message) -> None:
        """Connect, and identify this worker by the first message. Raises `OSError`."""
        self._codec = codec
        self._socket = connected_socket(path)
        _channels.add(self)
        _close_in_children()
        try:
            self.send(hello)
        except OSError:
            self.close()
            raise

    def send(self, message: Message) -> None:
        """Send a message without waiting. Raises `OSError`: `BlockingIOError` if nodeclient does not read."""
        self._socket.send(self._codec.encode(message), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def report(self, message: Message) -> None:
        """Send a message. If that fails, end the channel, so that neither side waits for what cannot come."""
        try:
            self.send(message)
        except BlockingIOError:
            LOG.warning("nodeclient reads no messages of this worker, so none are sent to it any more")
            self.end()
        except OSError:
            self.end()

    def receive(self) -> tuple[Message, list[int]]:
        """Wait for a message; return it with its file descriptors, which the caller has to close.

        Raises `OSError`, `ClosedError` once nodeclient has closed the connection, and `ChannelError` for a malformed
        packet, or for descriptors that this process cannot take.
        """
        packet, files, flags, _ = socket.recv_fds(self._socket, PACKET_BYTES, DESCRIPTORS_MAX, socket.MSG_CMSG_CLOEXEC)
        try:
            return self._message_in(packet, flags), files
        except ChannelError:
            for file in files:
                os.close(file)
            raise

    def _message_in(self, packet: bytes, flags: int) -> Message:
        if flags & socket.MSG_CTRUNC:
            raise ChannelError("this process cannot open more files: raise ulimit -n")
        if flags & socket.MSG_TRUNC:
            raise ChannelError(f"a packet is longer than {PACKET_BYTES} bytes")
        if not packet:
            raise ClosedError(CLOSED)
        return self._codec.decode(packet)

    def listen(
        self, name: str, on_message: Callable[[Message, list[int]], None], on_end: Callable[[Exception | None], None]
    ) -> threading.Thread:
        """Read messages in a thread of this name from now on, and return the thread.

        `on_message` owns the descriptors that come with a message. `on_end` is called when the channel has ended. If
        a message cannot be received, or `on_message` fails, this ends the channel, so that nodeclient waits for no
        answer, and `on_end` gets the error.
        """

        def read() -> None:
            failure = None
            try:
                while True:
                    on_message(*self.receive())
            except (ClosedError, ConnectionError):
                pass  # not a failure: `end` was called, or nodeclient is gone or refuses this process (see `CLOSED`)
            except Exception as error:  # noqa: BLE001 - training goes on without this thread
                failure = error
            self.end()
            on_end(failure)

        thread = threading.Thread(target=read, name=name, daemon=True)
        thread.start()
        return thread

    def end(self) -> None:
        """End the channel; `receive` then raises in the thread that waits in it. The descriptor stays open."""
        with suppress(OSError):  # nodeclient has ended it
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the descriptor. If a thread listens, call `end` first, and join it: closing would not wake it."""
        _channels.discard(self)
        self._socket.close()


_channels: set[AgentChannel[Any]] = set()
"""The open channels of this process, which a forked child closes."""


@cache  # registers once, since it cannot be undone
def _close_in_children() -> None:
    os.register_at_fork(after_in_child=_close_all)


def _close_all() -> None:
    for channel in [*_channels]:
        channel.close()
