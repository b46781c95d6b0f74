"""The end of the server means nothing about the nodes: they go on, and look for it again."""

import asyncio
from contextlib import AsyncExitStack, suppress

import pytest

from coordinatord.core.rounds.values.records import RoundStarted
from coordinatord.protocol.messages import Desired
from coordinatord.server.sessions import connections
from coordinatord.store.database_store import MemoryStore
from tests.coordinatord.server.conftest import Start
from tests.support.histories import records_in
from tests.support.programs import TIMEOUT_S
from tests.support.raw_session import connect, get, join
from tests.support.raw_websocket import wire

HASTY = {"reconnect_grace_s": 0.0}
"""A closed connection is a lost node at the next turn of the loop, long before the server has come to its end."""


async def test_the_end_of_the_server_is_no_loss_of_its_nodes(start: Start) -> None:
    store = MemoryStore()
    async with AsyncExitStack() as stack:
        async with start(store, **HASTY) as server:
            peers = [await stack.enter_async_context(connect(server.url, join(name, nodes=2))) for name in "ab"]
            for peer in peers:
                await peer.start_workers()
            for peer in peers:
                await peer.beat()
                await peer.receive(Desired)
            await server.driver.written()
            known = await records_in(store)
            assert isinstance(known[-1], RoundStarted)
        for peer in peers:
            await peer.receive_end()
        assert server.driver.machine.sessions == 2, "it is not told of the ends of its sessions"
        assert await records_in(store) == known


ASKING = b"GET /healthz HTTP/1.0\r\nHost: x\r\n\r\n"


async def refused(port: int) -> None:
    with suppress(OSError):
        while True:
            (await asyncio.open_connection("127.0.0.1", port))[1].close()


async def test_whoever_was_accepted_just_before_the_end_is_answered(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "FIRST_REQUEST_S", TIMEOUT_S)
    stack = AsyncExitStack()
    server = await stack.enter_async_context(start())
    async with wire(server.url) as early:
        await get(f"{server.url}/healthz")  # who came later is answered, so the first one is accepted
        async with asyncio.TaskGroup() as group:
            group.create_task(stack.aclose())
            await asyncio.wait_for(refused(server.port), TIMEOUT_S)
            early.send(ASKING)
            assert b" 200 " in await early.head()


async def test_a_connection_that_was_opened_ahead_holds_up_no_end(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "FIRST_REQUEST_S", 0.0)
    stack = AsyncExitStack()
    server = await stack.enter_async_context(start())
    async with wire(server.url) as ahead:
        await get(f"{server.url}/healthz")
        await asyncio.wait_for(stack.aclose(), TIMEOUT_S)
        await ahead.end()
