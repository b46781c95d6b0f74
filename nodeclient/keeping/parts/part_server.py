"""Sends parts of kept state, each that of one rank and one step, to other agents, over TCP.

`part_messages` describes the exchange. The event loop serves a peer until the peer has proved that it knows the key.
Then a thread sends the part. So a peer that is slow, sends nonsense, or belongs to no job delays no heartbeat.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
import time
import zlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from nodeclient.host.ports import Acceptor, listening_socket
from nodeclient.keeping.parts.arenas import Arenas, Held
from nodeclient.keeping.parts.part_messages import (
    NONCE_BYTES,
    REQUEST_BYTES,
    TAG_BYTES,
    Exchange,
    Kind,
    read_request,
)

BACKLOG = 1_024
"""All nodes of a large round may connect within a second."""

CONNECTIONS_MAX = 256
"""The most connections at a time. If one more comes, the server closes one that has not proved the key: the oldest of
the address that has most such connections. If all have proved it, the new one is closed, and its peer retries."""

REQUEST_WITHIN_S = 5.0
"""How long a peer has to send its request, which is one packet that TCP may have to repeat."""

SENDERS = 4
"""How many parts of each kind are sent at a time: enough for a fast network. Small parts never wait for big ones."""

CHUNK_BYTES = 1 << 20
"""The bytes that are read, checked and sent at a time, so that they stay in the processor's cache."""

GRACE_S = 10.0
RATE_MIN = 1e6
"""A transfer may take `GRACE_S`, plus a second for each `RATE_MIN` bytes. A network of 1 Gbit/s that a hundred nodes
share is faster. A slower peer is dropped."""


class PartServer:
    """Listens at a port of its own until `close`. Create it in the running loop. Raises `OSError` without a port."""

    def __init__(self, arenas: Arenas, on_damage: Callable[[Held], None], address: str) -> None:
        """Begin to serve the parts in memory at an address of this host; empty for all addresses.

        `on_damage` gets each part whose bytes are not those that were saved.
        """
        self.key = secrets.token_hex(16)
        """The key that peers have to know."""
        self._arenas = arenas
        self._on_damage = on_damage
        self._loop = asyncio.get_running_loop()
        listener = listening_socket(address, BACKLOG)
        self.port: int = listener.getsockname()[1]
        self._threads = {kind: ThreadPoolExecutor(SENDERS, thread_name_prefix="kept-part") for kind in Kind}
        self._connections: set[asyncio.Task[None]] = set()
        self._unproven: dict[asyncio.Task[None], str] = {}
        """The peers' addresses of the connections that have not proved the key, the oldest first."""
        self._sending: set[socket.socket] = set()
        """The connections on which a thread sends."""
        # One at a time: between two, earlier peers can prove the key, before later ones push them out.
        self._acceptor = Acceptor(listener, self._accept, at_once=1)

    def close(self) -> None:
        """Stop listening and sending."""
        self._acceptor.close()
        for task in self._connections:
            task.cancel()
        for connection in list(self._sending):
            with suppress(OSError):  # it is closed already
                connection.shutdown(socket.SHUT_RDWR)  # the thread that sends on it gets an error at once
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)

    def _accept(self, connection: socket.socket, peer: tuple[str, int]) -> None:
        if len(self._connections) >= CONNECTIONS_MAX and not self._drop_unproven():
            connection.close()
            return
        task = self._loop.create_task(self._serve(connection), name="kept part")
        self._connections.add(task)
        self._unproven[task] = peer[0]
        task.add_done_callback(self._forget)
        task.add_done_callback(lambda _: connection.close())  # also if it was cancelled before it began

    def _drop_unproven(self) -> bool:
        """Close a connection that has not proved the key, to make room; return whether there was one."""
        if not self._unproven:
            return False
        [(most, _)] = Counter(self._unproven.values()).most_common(1)
        task = next(task for task, address in self._unproven.items() if address == most)
        task.cancel()
        self._forget(task)
        return True

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._connections.discard(task)
        self._unproven.pop(task, None)

    async def _serve(self, connection: socket.socket) -> None:
        nonce = secrets.token_bytes(NONCE_BYTES)
        try:
            async with asyncio.timeout(REQUEST_WITHIN_S):
                await self._loop.sock_sendall(connection, nonce)
                data = await self._receive(connection, REQUEST_BYTES)
        except (OSError, EOFError):  # no agent, or one that gave up; a timeout is an OSError
            return
        packed, tag = data[:-TAG_BYTES], data[-TAG_BYTES:]
        exchange = Exchange(self.key, nonce, packed)
        if not hmac.compare_digest(tag, exchange.request_tag()):
            return
        if (task := asyncio.current_task()) is not None:
            self._unproven.pop(task, None)
        try:
            name = read_request(packed, self._arenas.run)
        except ValueError:  # the peer knows the key, so it is an agent of another release
            return
        held = None if name is None else self._arenas.find(name.rank, name.round, name.step, name.kind)
        try:
            async with asyncio.timeout(REQUEST_WITHIN_S):
                await self._loop.sock_sendall(connection, exchange.answer(None if held is None else held.commit))
        except OSError:
            return
        if held is not None:
            await self._send(connection, exchange, held)

    async def _send(self, connection: socket.socket, exchange: Exchange, held: Held) -> None:
        self._sending.add(connection)
        try:
            damaged = await self._loop.run_in_executor(self._threads[held.kind], _send_part, connection, exchange, held)
        finally:
            self._sending.discard(connection)
        if damaged:
            self._on_damage(held)

    async def _receive(self, connection: socket.socket, length: int) -> bytes:
        data = b""
        while len(data) < length:
            more = await self._loop.sock_recv(connection, length - len(data))
            if not more:
                raise EOFError
            data += more
        return data


def _send_part(connection: socket.socket, exchange: Exchange, held: Held) -> bool:
    """Send a part and its end; return whether the part is damaged."""
    place, commit = held.place, held.commit
    data, known = place.data[: commit.length], place.digest(commit)
    until = time.monotonic() + GRACE_S + len(data) / RATE_MIN
    tag, crc = exchange.data_tag(), 0
    try:
        for begin in range(0, len(data), CHUNK_BYTES):
            # A copy, so that what is checked is what is sent even if a worker writes there meanwhile.
            chunk = bytes(data[begin : begin + CHUNK_BYTES])
            crc = zlib.crc32(chunk, crc)
            tag.update(chunk)
            _send_all(connection, chunk, until)
        is_unchanged = place.still_has(commit)
        is_damaged = known not in {None, crc}  # without a stored digest, damage cannot be seen
        _send_all(connection, exchange.end(tag, crc, whole=is_unchanged and not is_damaged), until)
        connection.shutdown(socket.SHUT_WR)
    except OSError:  # the peer has gone, is too slow, or this node closes
        return False
    return is_unchanged and is_damaged


def _send_all(connection: socket.socket, data: bytes, until: float) -> None:
    """Send all data. Raises `OSError`, also when `until` has passed."""
    connection.settimeout(max(until - time.monotonic(), 1e-3))
    connection.sendall(data)
