"""The worker's end of the connection to nodeclient about rounds in place; `round_messages` has its messages."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

from workerlib.contract.packets import PACKET_BYTES, ChannelError
from workerlib.contract.round_messages import ROUND_CODEC, STREAMS, AskToLeave, CanStay, NextRound, RoundMessage
from workerlib.responder import connected_socket

LOG = logging.getLogger(__name__)


class RoundChannel:
    """A connection over which nodeclient asks this worker to leave its round, and sends the next one.

    It lasts as long as this process.
    """

    def __init__(self, path: str, local_rank: int, round_number: int) -> None:
        """Connect, and identify this worker. Raises `OSError`."""
        self._socket = connected_socket(path)
        try:
            self._socket.send(ROUND_CODEC.encode(CanStay(local_rank, round_number, os.getpid())), socket.MSG_NOSIGNAL)
        except OSError:
            self._socket.close()
            raise
        self._rounds: SimpleQueue[tuple[NextRound, list[int]] | None] = SimpleQueue()
        """Received rounds with their descriptors; None when no more will come."""
        os.register_at_fork(after_in_child=self._socket.close)  # the connection stays that of the parent

    def listen(self, leave: Callable[[AskToLeave], None]) -> None:
        """Read messages in a thread from now on, which calls `leave` when nodeclient asks to leave the round."""
        threading.Thread(target=self._receive_all, args=(leave,), name="workerlib-rounds", daemon=True).start()

    def send(self, message: RoundMessage) -> None:
        """Send a message to nodeclient, and ignore an error: if it is gone, its workers are ended as well."""
        with suppress(OSError):
            self._socket.send(ROUND_CODEC.encode(message), socket.MSG_NOSIGNAL)

    def next_round(self) -> tuple[NextRound, list[int]] | None:
        """Wait for the next round; return it with its descriptors, or None if no more will come."""
        return self._rounds.get()

    def _receive_all(self, leave: Callable[[AskToLeave], None]) -> None:
        """Read until the connection ends; after an error end it, since nothing would read nodeclient's requests."""
        try:
            while True:
                packet, files, _, _ = socket.recv_fds(self._socket, PACKET_BYTES, STREAMS + 1, socket.MSG_CMSG_CLOEXEC)
                message = ROUND_CODEC.decode(packet)
                if isinstance(message, NextRound) and len(files) >= STREAMS:
                    self._rounds.put((message, files))
                elif isinstance(message, AskToLeave):
                    leave(message)
        except (OSError, ChannelError):
            pass  # nodeclient has gone
        except Exception as error:  # noqa: BLE001 - training goes on without this thread, to the end of the round
            LOG.warning("this process cannot go into another round: %r", error)
        with suppress(OSError):  # nodeclient has ended it
            self._socket.shutdown(socket.SHUT_RDWR)
        self._rounds.put(None)
