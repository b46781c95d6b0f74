"""The end of the server means nothing about the nodes: they go on, and look for it again."""

import asyncio
from contextlib import AsyncExitStack, suppress

import aiohttp
import pytest

from coordinatord.core.rounds.values.records import NodeJoined, RoundStarted
from coordinatord.protocol.messages import Desired, Goal, Phase
from coordinatord.server.sessions import connections
from coordinatord.store.memory_store import MemoryStore
from tests.coordinatord.server.conftest import Start
from tests.support.histories import records_in
from tests.support.programs import TIMEOUT_S
from tests.support.raw_session import connect, join

HASTY = {"reconnect_grace_s": 0.0}
"""A closed connection is a lost node at the next turn of the loop, long before the server has come to its end."""


async def test_the_end_of_the_server_is_no_loss_of_the_nodes_that_train(start: Start) -> None:
    store = MemoryStore()
    async with AsyncExitStack() as stack:
        async with start(store, **HASTY) as server:
            peers = [await stack.enter_async_context(connect(server.url, join(name, nodes=2))) for name in "ab"]
            for peer in peers:
                await peer.report(Phase.RUNNING, await peer.receive_goal(Goal.RUN))
            for peer in peers:
                await peer.beat()
                await peer.receive(Desired)
            await server.driver.written()
            known = await records_in(store)
            assert isinstance(known[-1], RoundStarted)
        assert await records_in(store) == known


async def test_the_end_of_the_server_is_no_loss_of_the_nodes_that_wait(start: Start) -> None:
    store = MemoryStore()
    async with AsyncExitStack() as stack:
        async with start(store, **HASTY) as server:
            peer = await stack.enter_async_context(connect(server.url, join("a", nodes=2)))
            await peer.receive(Desired)
            known = await records_in(store)
            assert isinstance(known[-1], NodeJoined)
        await peer.receive_end()
        assert await records_in(store) == known


ASKING = b"GET /healthz HTTP/1.0\r\nHost: x\r\n\r\n"


async def opened(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a server, and say nothing."""
    host, _, port = url.removeprefix("http://").partition(":")
    return await asyncio.open_connection(host, int(port))


async def accepted(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a server, and return when it has accepted that: it has answered who came later."""
    streams = await opened(url)
    async with aiohttp.ClientSession() as http, http.get(f"{url}/healthz"):
        return streams


async def refused(url: str) -> None:
    """Wait until a server accepts nobody any more."""
    with suppress(OSError):
        while True:
            (await opened(url))[1].close()


async def test_whoever_was_accepted_just_before_the_end_is_answered(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "FIRST_REQUEST_S", TIMEOUT_S)
    stack = AsyncExitStack()
    server = await stack.enter_async_context(start())
    reader, writer = await accepted(server.url)
    async with asyncio.TaskGroup() as group:
        group.create_task(stack.aclose())
        await asyncio.wait_for(refused(server.url), TIMEOUT_S)
        writer.write(ASKING)
        assert b" 200 " in await asyncio.wait_for(reader.readline(), TIMEOUT_S)
        writer.close()


async def test_a_connection_that_was_opened_ahead_holds_up_no_end(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "FIRST_REQUEST_S", 0.0)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(start())
        reader, writer = await accepted(server.url)
        await asyncio.wait_for(stack.aclose(), TIMEOUT_S)
        assert await asyncio.wait_for(reader.read(), TIMEOUT_S) == b""
        writer.close()
