"""The server as a whole: where it listens, what a bug does to it, and its end, which means nothing about the nodes."""

import asyncio
import logging
from contextlib import AsyncExitStack, suppress

import pytest

from coordinatord.core.journal import Journal
from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.values.records import RoundStarted
from coordinatord.protocol.messages import Desired
from coordinatord.server.app import ListenAddress, ListenError, serve
from coordinatord.server.http import jobs_api
from coordinatord.server.sessions import connections
from coordinatord.store.database_store import MemoryStore
from coordinatord.store.interface import StoreError
from tests.coordinatord.server.conftest import Start
from tests.support.histories import records_in
from tests.support.programs import TIMEOUT_S
from tests.support.raw_session import connect, get, join
from tests.support.raw_websocket import wire


@pytest.mark.parametrize(
    ("owner", "method"),
    [
        pytest.param(Coordinator, "handle", id="in the machine"),
        pytest.param(Journal, "add", id="while a message is on its way out"),
    ],
)
async def test_an_exception_in_an_event_ends_the_server(
    owner: type, method: str, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)

    def stumble(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(owner, method, stumble)
    async with start() as server, connect(server.url, join()):
        ended = asyncio.get_running_loop().create_future()
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(server.tasks.guard(ended), TIMEOUT_S)


@pytest.mark.parametrize(
    ("error", "status", "word"), [(ZeroDivisionError(), 500, "bug"), (StoreError("no room"), 503, "unavailable")]
)
async def test_an_exception_while_a_request_is_answered_is_reported_as_any_error(
    error: Exception,
    status: int,
    word: str,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def stumble(*_: object, **__: object) -> None:
        raise error

    async with start() as server:
        monkeypatch.setattr(jobs_api, "respond", stumble)
        found, _, answer = await get(f"{server.url}/healthz", "application/json")
        assert (found, answer["error"]) == (status, word)
    bugs = [record for record in caplog.records if "this is a bug of coordinatord" in record.message]
    assert [record.exc_info is not None for record in bugs] == ([True] if word == "bug" else [])


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


@pytest.mark.parametrize("host", ["203.0.113.7", "no-such-host.invalid", f"{'x' * 64}.example"])
async def test_a_foreign_address_is_said_with_what_to_do(host: str) -> None:
    with pytest.raises(ListenError, match=rf"{host} is no address of this host .*see --host"):
        async with serve(ListenAddress(host, 0), Policy(), MemoryStore()):
            pass


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]"), ("::", "[::]")])
async def test_the_url_is_one(host: str, shown: str) -> None:
    async with serve(ListenAddress(host, 0), Policy(), MemoryStore()) as server:
        assert server.url == f"http://{shown}:{server.port}"
        assert (await get(f"{server.url.replace('[::]', '127.0.0.1')}/healthz"))[0] == 200
