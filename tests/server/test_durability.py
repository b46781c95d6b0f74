"""Persist, then speak: nobody hears of what a crash could forget."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from coordinatord.core.effects import Record, RoundFormed
from coordinatord.store.interface import StoreError
from coordinatord.store.memory import MemoryStore
from coordinatord.wire.messages import Desired, Goal, Refused
from tests.server.conftest import Start
from tests.support.wire import TIMEOUT_S, connect, join, until

pytestmark = pytest.mark.asyncio


class SlowStore(MemoryStore):
    """Makes records durable when it is allowed to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: asyncio.Queue[Sequence[Record]] = asyncio.Queue()
        self.allowed = asyncio.Semaphore(0)
        self.broken = False

    async def append(self, records: Sequence[Record]) -> None:
        """Keep records, late."""
        self.asked.put_nowait(records)
        await self.allowed.acquire()
        if self.broken:
            raise StoreError("the disk is full")
        await super().append(records)


async def test_no_node_hears_of_a_round_before_it_is_durable(start: Start) -> None:
    store = SlowStore()
    async with start(store) as server, connect(server.url, join("a")) as a:
        [*_, formed] = await store.asked.get()
        assert isinstance(formed, RoundFormed)
        # A session that needs no record is served meanwhile, so what is said travels: only `a` hears nothing.
        async with connect(server.url) as other:
            await other.socket.send_str("no join")
            await other.hear(Refused)
        silent = asyncio.ensure_future(a.hear(Desired))
        await asyncio.sleep(0)
        assert not silent.done()
        store.allowed.release()
        assert (await silent).goal is Goal.RUN
        assert formed in store.records


async def test_what_happens_during_a_commit_waits_for_the_next_one(start: Start) -> None:
    store = SlowStore()
    async with (
        start(store) as server,
        connect(server.url, join("a", nodes=3)) as a,
    ):
        await store.asked.get()
        async with connect(server.url, join("b", nodes=3)) as b, connect(server.url, join("c", nodes=3)) as c:
            await until(lambda: len(server.driver._waiting) == 3)
            assert store.asked.empty()
            store.allowed.release()
            assert (await a.hear(Desired)).goal is Goal.WAIT
            second = await store.asked.get()
            assert isinstance(second[-1], RoundFormed)
            assert [record.reason for record in store.records] != []
            assert all(record not in store.records for record in second)
            store.allowed.release()
            for peer in (a, b, c):
                assert (await peer.hear_goal(Goal.RUN)).round == 1


async def test_a_store_that_fails_ends_the_server_and_nothing_is_said(start: Start) -> None:
    store = SlowStore()
    store.broken = True
    async with start(store) as server, connect(server.url, join("a")) as a:
        await store.asked.get()
        store.allowed.release()
        ended = asyncio.get_running_loop().create_future()
        with pytest.raises(StoreError, match="the disk is full"):
            await asyncio.wait_for(server.until(ended), TIMEOUT_S)
        heard = asyncio.ensure_future(a.hear_end())
        server.driver._deliver.__self__.close()  # type: ignore[attr-defined] # what the end of `serve` does
        await heard
        assert not store.records
