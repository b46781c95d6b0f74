"""The agent's end of the channels to its workers, for everything about kept state.

`workerlib.contract.channel_messages` has the messages. Messages of a worker are not trusted, because it may be any
program of this user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from nodeclient.host.process_state import is_stopped
from nodeclient.host.worker_socket import Connection, MessageSocket
from workerlib.contract.channel_messages import CODEC, Hello, Message


class WorkerChannel:
    """The channels to the workers of one round at a time; all methods are for the event loop's thread.

    `on_message` gets the local rank and each message after the hello. `on_gone` gets the local rank of a
    worker whose channel has ended, perhaps within a call of `send`.
    """

    def __init__(self, on_message: Callable[[int, Message], None], on_gone: Callable[[int], None]) -> None:
        self._on_message = on_message
        self._on_gone = on_gone
        self._socket = MessageSocket("keep", CODEC, Connection, self._receive, self._end)
        self._workers = 0
        self._round = 0

    def listen(self, folder: Path, workers: int, round_number: int) -> str:
        """Begin a round; return the path at which its workers connect. Raises `OSError`."""
        self.close()
        self._workers, self._round = workers, round_number
        return self._socket.listen(folder, workers)

    @property
    def is_open(self) -> bool:
        """Whether workers of a round may connect."""
        return self._socket.is_open

    @property
    def connected(self) -> frozenset[int]:
        """The local ranks of the workers that have sent their hello and are still connected."""
        return frozenset(peer.local_rank for peer in self._socket.connections if peer.local_rank is not None)

    @property
    def stopped(self) -> frozenset[int]:
        """The local ranks of the connected workers that a signal has stopped, so that they do not answer."""
        return frozenset(
            peer.local_rank for peer in self._socket.connections if peer.local_rank is not None and is_stopped(peer.pid)
        )

    def send_all(self, local_ranks: Iterable[int], message: Message) -> None:
        """Send a packet to several workers."""
        for local_rank in local_ranks:
            self.send(local_rank, message)

    def send(self, local_rank: int, message: Message, fds: Sequence[int] = ()) -> None:
        """Send a packet to a worker if it is connected, as `MessageSocket.send` does."""
        for peer in [peer for peer in self._socket.connections if peer.local_rank == local_rank]:
            self._socket.send(peer, message, fds)

    def close(self) -> None:
        """Close all channels, without calling `on_gone`."""
        self._socket.close()

    def _receive(self, peer: Connection, message: Message) -> None:
        if peer.local_rank is not None:
            self._on_message(peer.local_rank, message)
        elif isinstance(message, Hello) and self._is_expected(message):
            peer.local_rank = message.local_rank
        else:
            self._socket.end(peer)

    def _is_expected(self, hello: Hello) -> bool:
        within = hello.round == self._round and 0 <= hello.local_rank < self._workers
        return within and hello.local_rank not in self.connected

    def _end(self, peer: Connection) -> None:
        if peer.local_rank is not None:
            self._on_gone(peer.local_rank)
