"""The end of the server means nothing about the nodes: they go on, and look for it again."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from coordinatord.core.values.records import NodeJoined, RoundStarted
from coordinatord.protocol.messages import Desired, Goal, Phase
from coordinatord.store.memory_store import MemoryStore
from tests.coordinatord.server.conftest import Start
from tests.support.raw_session import connect, join

pytestmark = pytest.mark.asyncio

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
            known = list(store.records)
            assert isinstance(known[-1], RoundStarted)
        assert list(store.records) == known


async def test_the_end_of_the_server_is_no_loss_of_the_nodes_that_wait(start: Start) -> None:
    store = MemoryStore()
    async with AsyncExitStack() as stack:
        async with start(store, **HASTY) as server:
            peer = await stack.enter_async_context(connect(server.url, join("a", nodes=2)))
            await peer.receive(Desired)
            known = list(store.records)
            assert isinstance(known[-1], NodeJoined)
        await peer.receive_end()
        assert list(store.records) == known
