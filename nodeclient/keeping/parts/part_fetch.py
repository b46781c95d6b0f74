"""Gets a part of kept state, that of one rank and one step, from the agent that holds it, over TCP.

`part_messages` describes the exchange. All functions block, so they are for a thread.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event

from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.kept_state import KeptSource
from nodeclient.keeping.parts.part_messages import (
    ANSWER_BYTES,
    END_BYTES,
    NONCE_BYTES,
    Exchange,
    PartName,
    pack_request,
)
from nodeclient.keeping.parts.part_server import CHUNK_BYTES, GRACE_S, RATE_MIN, REQUEST_WITHIN_S
from workerlib.contract.arena import Commit, Place

POLL_S = 0.5
"""How often a thread that waits for data checks whether the transfer was cancelled."""


class FetchError(OperationalError):
    """A part cannot be received from its holder; the text says why."""


def fetch(
    source: KeptSource,
    name: PartName,
    room: Callable[[Commit], Place],
    cancelled: Event,
    pace: Callable[[int], None] = lambda _: None,
) -> None:
    """Receive a part into a place of an arena and commit it there, with its digest, so that the place is whole.

    `room` is called once with the commit that describes the part, and returns the place for it. Another thread sets
    `cancelled` to end the transfer. `pace` is called with the size of each received piece, and blocks until the next
    one may be received. Raises `FetchError` if the holder does not send the part, or the transfer was cancelled; and
    all errors of `room`, which are those of this node.
    """
    with _errors_of(source.address):
        connection, exchange = _request(source, name, cancelled)
    with connection:
        with _errors_of(source.address):
            commit = exchange.read_answer(_receive(connection, ANSWER_BYTES, time.monotonic() + GRACE_S, cancelled))
        if commit is None:
            raise FetchError(f"{source.address} does not hold it any more")
        if (commit.rank, commit.round, commit.step) != (name.rank, name.round, name.step):
            raise FetchError(f"{source.address} offers another part")
        place = room(commit)
        with _errors_of(source.address):
            crc = _receive_part(connection, exchange, place.data[: commit.length], cancelled, pace)
    place.commit(commit)
    place.store_digest(commit, crc)


@contextmanager
def _errors_of(holder: str) -> Iterator[None]:
    """Turn errors of the connection, and of data that came over it, into a `FetchError` that names the holder."""
    try:
        yield
    except (TimeoutError, EOFError):
        raise FetchError(f"{holder} was too slow, or broke off") from None
    except OSError as error:
        raise FetchError(f"{holder}: {error.strerror or error}") from error
    except ValueError as error:
        raise FetchError(f"{holder}: {error}") from None


def _request(source: KeptSource, name: PartName, cancelled: Event) -> tuple[socket.socket, Exchange]:
    connection = socket.create_connection((source.address, source.port), timeout=REQUEST_WITHIN_S)
    try:
        nonce = _receive(connection, NONCE_BYTES, time.monotonic() + REQUEST_WITHIN_S, cancelled)
        request = pack_request(name, secrets.token_bytes(NONCE_BYTES))
        exchange = Exchange(source.key, nonce, request)
        connection.sendall(request + exchange.request_tag())
    except BaseException:
        connection.close()
        raise
    return connection, exchange


def _receive_part(
    connection: socket.socket,
    exchange: Exchange,
    memory: memoryview,
    cancelled: Event,
    pace: Callable[[int], None],
) -> int:
    """Receive a part into memory; return the holder's CRC of it. Raises `ValueError` if the part is not whole."""
    tag = exchange.data_tag()
    # The pauses of `pace` fit in, because --keep-rate is at least twice `RATE_MIN`.
    until = time.monotonic() + GRACE_S + len(memory) / RATE_MIN
    for begin in range(0, len(memory), CHUNK_BYTES):
        chunk = memory[begin : begin + CHUNK_BYTES]
        _receive_into(connection, chunk, until, cancelled)
        tag.update(chunk)
        pace(len(chunk))
    crc = exchange.read_end(tag, _receive(connection, END_BYTES, until, cancelled))
    if crc is None:
        raise ValueError("the part that it holds is damaged, or was overwritten meanwhile")
    return crc


def _receive(connection: socket.socket, length: int, until: float, cancelled: Event) -> bytes:
    data = bytearray(length)
    _receive_into(connection, memoryview(data), until, cancelled)
    return bytes(data)


def _receive_into(connection: socket.socket, memory: memoryview, until: float, cancelled: Event) -> None:
    """Fill memory from the connection. Raises `TimeoutError`, `EOFError` and other errors of the connection."""
    connection.settimeout(POLL_S)
    while memory:
        if cancelled.is_set():
            raise EOFError
        if time.monotonic() >= until:
            raise TimeoutError
        try:
            count = connection.recv_into(memory)
        except TimeoutError:
            continue
        if not count:
            raise EOFError
        memory = memory[count:]
