"""The worker's end of the connection over which nodeclient asks it to leave its round, and sends the next one."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

from workerlib.in_place.round_messages import ROUND_CODEC, STREAMS, AskToLeave, CanStay, NextRound, RoundMessage
from workerlib.packets import PACKET_BYTES, ChannelError
from workerlib.responder import address

LOG = logging.getLogger(__name__)


class RoundChannel:
    """A connection to the nodeclient of this host, which lasts as long as this process. A thread reads from it."""

    def __init__(self, path: str, local_rank: int, round_number: int) -> None:
        """Connect, and send which worker this is. Raises `OSError`."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with address(path) as short:
                self._socket.connect(short)
            self._socket.send(ROUND_CODEC.encode(CanStay(local_rank, round_number, os.getpid())), socket.MSG_NOSIGNAL)
        except OSError:
            self._socket.close()
            raise
        self._rounds: SimpleQueue[tuple[NextRound, list[int]] | None] = SimpleQueue()
        os.register_at_fork(after_in_child=self._socket.close)  # the connection stays that of the parent

    def listen(self, leave: Callable[[AskToLeave], None]) -> None:
        """Read messages from now on, in a thread; it calls `leave` when this worker is asked to leave its round."""
        threading.Thread(target=self._receive_all, args=(leave,), name="workerlib-rounds", daemon=True).start()

    def send(self, message: RoundMessage) -> None:
        """Send a message to nodeclient, if it is still there."""
        with suppress(OSError):  # it has gone, and its workers follow
            self._socket.send(ROUND_CODEC.encode(message), socket.MSG_NOSIGNAL)

    def next_round(self) -> tuple[NextRound, list[int]] | None:
        """Wait for the next round; return it with its descriptors. None if none will come."""
        return self._rounds.get()

    def _receive_all(self, leave: Callable[[AskToLeave], None]) -> None:
        """Read until the connection ends; this thread ends it as well, since the worker could not be asked any more."""
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
