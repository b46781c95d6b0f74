"""Whoever connects to the server of kept parts costs its node nothing, and keeps nobody out."""

import asyncio
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from coordinatord.protocol.kept_state import KeptSource
from nodeclient.keeping.parts import part_server
from nodeclient.keeping.parts.arena_memory import ArenaMemory
from nodeclient.keeping.parts.arenas import Arenas
from nodeclient.keeping.parts.part_messages import NONCE_BYTES, REQUEST_BYTES, Exchange, Kind, PartName, pack_request
from nodeclient.keeping.parts.part_server import PartServer
from tests.nodeclient.keeping.stage import BIG, RUN, a_resume, holder, keeping_nodes, wanted
from tests.support.programs import TIMEOUT_S


def connected(source: KeptSource) -> socket.socket:
    return socket.create_connection((source.address, source.port))


async def asked(source: KeptSource) -> socket.socket:
    """Ask for the big state of step 7, and read nothing of it."""
    reader = connected(source)
    nonce = await asyncio.to_thread(reader.recv, NONCE_BYTES, socket.MSG_WAITALL)
    request = pack_request(PartName(RUN, 0, 1, 7, Kind.BIG), b"r" * NONCE_BYTES)
    reader.sendall(request + Exchange(source.key, nonce, request).request_tag())
    return reader


async def test_strange_readers_cost_the_holder_nothing(tmp_path: Path) -> None:
    request = b"?" * REQUEST_BYTES
    async with keeping_nodes(tmp_path, "a", "b") as [a, b]:
        await holder(a)
        source = a.source(wanted())
        with ExitStack() as rude:
            for speech in (b"", b"GET / HTTP/1.1\r\n\r\n" * 100, request[:-1], request):
                rude.enter_context(connected(source)).sendall(speech)
            rude.enter_context(await asked(source))
            _, data = await b.worker(b.begin(2, a_resume(1, 7, source))).resume()
            assert data[0, True] == BIG


@pytest.mark.parametrize("speech", [b"", b"?" * (REQUEST_BYTES - 1)], ids=["silent", "half a request"])
async def test_who_does_not_show_the_key_in_time_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, speech: bytes
) -> None:
    monkeypatch.setattr(part_server, "REQUEST_WITHIN_S", 0.05)
    async with keeping_nodes(tmp_path, "a") as [a]:
        await holder(a)
        with connected(a.source(wanted())) as rude:
            rude.settimeout(TIMEOUT_S)
            rude.sendall(speech)
            while await asyncio.to_thread(rude.recv, NONCE_BYTES):
                pass


async def test_a_flood_of_connections_without_the_key_keeps_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_server, "CONNECTIONS_MAX", 8)
    async with keeping_nodes(tmp_path, "a", "b") as [a, b]:
        await holder(a)
        source = a.source(wanted())
        with ExitStack() as rude:
            for _ in range(20):
                rude.enter_context(connected(source))
            _, data = await b.worker(b.begin(2, a_resume(1, 7, source))).resume()
        assert data[0, True] == BIG


async def test_who_connects_has_time_to_show_the_key_before_the_next_one_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst of honest agents would have all but the last ones dropped."""
    monkeypatch.setattr(part_server, "REQUEST_WITHIN_S", TIMEOUT_S)
    server = PartServer(Arenas(ArenaMemory(0, lambda: 0), 0), lambda _: None, "127.0.0.1")
    counts = [0]
    with ExitStack() as peers:
        for _ in range(3):
            peers.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        while counts[-1] < 3:
            await asyncio.sleep(0)  # one turn of the event loop
            if len(server._connections) != counts[-1]:
                counts.append(len(server._connections))
        server.close()
    assert counts == [0, 1, 2, 3]


@pytest.mark.parametrize("turns", range(5))
async def test_who_connects_while_the_server_closes_is_let_go(turns: int) -> None:
    server = PartServer(Arenas(ArenaMemory(0, lambda: 0), 0), lambda _: None, "127.0.0.1")
    with socket.create_connection(("127.0.0.1", server.port)) as late:
        for _ in range(turns):  # the event loop accepts it in one of its next turns
            await asyncio.sleep(0)
        server.close()
        late.settimeout(TIMEOUT_S)
        with suppress(ConnectionResetError):
            while await asyncio.to_thread(late.recv, NONCE_BYTES):
                pass


async def test_a_reader_that_is_too_slow_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_server, "GRACE_S", 0.1)
    monkeypatch.setattr(part_server, "RATE_MIN", 1e9)
    big = bytes(20_000_000)
    async with keeping_nodes(tmp_path, "a") as [a]:
        worker = a.worker(a.begin(1))
        await worker.reserve(len(big))
        worker.save(7, big)
        await a.reports(lambda holding: holding.save_s is not None)
        server = a.keeper._server
        assert server is not None
        with await asked(a.source(wanted())) as reader:
            await asyncio.to_thread(reader.recv, 1)  # from here on it is sent
            await a.until(lambda: not server._sending)
