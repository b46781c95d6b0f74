"""The agent's end of the channels to its workers, for everything about kept state: Unix sockets for packets.

`workerlib.contract.channel_messages` has the messages. Memory goes to a worker as file descriptors in a packet.
Messages of a worker are not trusted, because it may be any program of this user.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nodeclient.host.process_state import is_stopped
from nodeclient.host.worker_socket import Connection, WorkerSocket, receive_packet
from workerlib.contract.channel_messages import Hello, Message, decode, encode
from workerlib.contract.packets import ChannelError

UNSENT_MAX = 1_024
"""The most packets that wait for a worker. A worker with more has stopped reading."""


@dataclass(slots=True, eq=False)
class _Peer(Connection):
    """A connection; it has a local rank once the worker has sent its hello."""

    unsent: deque[tuple[bytes, tuple[int, ...]]] = field(default_factory=deque)
    """The packets that the socket does not take yet, each with duplicates of the caller's descriptors."""


class WorkerChannel:
    """The channels to the workers of one round at a time; all methods are for the event loop's thread.

    `on_message` gets the local rank and each message after the hello. `on_gone` gets the local rank of a
    worker whose channel has ended, perhaps within a call of `send`.
    """

    def __init__(self, on_message: Callable[[int, Message], None], on_gone: Callable[[int], None]) -> None:
        self._on_message = on_message
        self._on_gone = on_gone
        self._loop = asyncio.get_running_loop()
        self._socket = WorkerSocket("keep", _Peer, self._receive)
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
        """Send a packet to a worker if it is connected, with duplicates of the descriptors.

        If the system is short of descriptors, the channel is closed, because a worker needs every packet.
        """
        packet = encode(message)
        for peer in [peer for peer in self._socket.connections if peer.local_rank == local_rank]:
            duplicates = _duplicates(fds)
            if duplicates is None:
                self._end(peer)
            else:
                peer.unsent.append((packet, duplicates))
                self._flush(peer)

    def close(self) -> None:
        """Close all channels, without calling `on_gone`."""
        for peer in list(self._socket.connections):
            self._forget(peer)
        self._socket.close()

    def _receive(self, peer: _Peer) -> None:
        packet = receive_packet(peer.socket)
        if packet is None:
            return
        try:
            message = decode(packet)
        except ChannelError:  # the packet is empty, as the worker is gone, or it is no worker of this node
            self._end(peer)
            return
        if peer.local_rank is not None:
            self._on_message(peer.local_rank, message)
        elif isinstance(message, Hello) and self._is_expected(message):
            peer.local_rank = message.local_rank
        else:
            self._end(peer)

    def _is_expected(self, hello: Hello) -> bool:
        within = hello.round == self._round and 0 <= hello.local_rank < self._workers
        return within and hello.local_rank not in self.connected

    def _flush(self, peer: _Peer) -> None:
        try:
            while peer.unsent:
                packet, fds = peer.unsent[0]
                socket.send_fds(peer.socket, [packet], fds)
                peer.unsent.popleft()
                _close(fds)
        except BlockingIOError:
            if len(peer.unsent) > UNSENT_MAX:
                self._end(peer)
            else:
                self._loop.add_writer(peer.socket, self._flush, peer)
        except OSError:
            self._end(peer)
        else:
            self._loop.remove_writer(peer.socket)

    def _end(self, peer: _Peer) -> None:
        local_rank = peer.local_rank
        self._forget(peer)
        if local_rank is not None:
            self._on_gone(local_rank)

    def _forget(self, peer: _Peer) -> None:
        self._loop.remove_writer(peer.socket)
        self._socket.forget(peer)
        for _, fds in peer.unsent:
            _close(fds)


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
