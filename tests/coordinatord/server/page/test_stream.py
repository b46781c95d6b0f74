"""The page's data: whole states, soon, of what is durable alone, made once for all, and with bounds."""

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from aiohttp import ClientResponse, ClientSession, ClientTimeout
from msgspec.structs import replace

from coordinatord.protocol.fields import LAST_LINES_MAX, LINE_MAX
from coordinatord.protocol.messages import Goal, Phase
from coordinatord.server import app
from coordinatord.server.app import Server
from coordinatord.server.http import live_updates
from tests.coordinatord.server.conftest import Start
from tests.support.builders import a_failure, a_spec
from tests.support.programs import TIMEOUT_S
from tests.support.raw_session import IDLE, connect, get, join
from tests.support.stores import RoundsStore, SlowStore

NEVER_S = 3_600.0

JSON = "application/json"


class Viewer:
    """One page that is open, without a browser."""

    def __init__(self, answer: ClientResponse) -> None:
        self.answer = answer

    async def event(self) -> tuple[str, Any, bytes]:
        """Return the next event: its kind, its data, and its very bytes; an end if there is none."""
        block = b""
        async with asyncio.timeout(TIMEOUT_S):
            while not block.startswith(b"event: "):
                block = await self.answer.content.readuntil(b"\n\n")
                if not block:
                    return "end", None, b""
        kind, data = block.decode().removesuffix("\n\n").split("\n")
        return kind.removeprefix("event: "), json.loads(data.removeprefix("data: ")), block

    async def next(self, kind: str) -> Any:
        """Return the data of the next event of a kind."""
        while True:
            found, received, _ = await self.event()
            assert found != "end"
            if found == kind:
                return received


@asynccontextmanager
async def view(server: Server, query: str = "") -> AsyncIterator[Viewer]:
    """Look at a server's stream."""
    timeout = ClientTimeout(total=None)
    async with (
        ClientSession(timeout=timeout, read_bufsize=2**20) as client,
        client.get(f"{server.url}/v1/stream{query}") as answer,
    ):
        assert answer.status == 200
        yield Viewer(answer)


def nodes_of(received: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the nodes of a job's event as `GET /v1/jobs/{job}` has them."""
    return [dict(zip(received["nodes"]["columns"], row, strict=True)) for row in received["nodes"]["rows"]]


async def test_what_is_recorded_is_sent_without_waiting_for_a_turn(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_updates, "EVERY_S", NEVER_S)
    async with start() as server, view(server, "?job=job") as viewer:
        assert (await viewer.next("jobs"))["jobs"] == []
        assert (await viewer.next("job"))["status"] is None
        async with connect(server.url, join("a")):
            while (received := await viewer.next("job"))["status"] is None or received["status"]["round"] != 1:
                pass
            assert [node["node"] for node in nodes_of(received)] == ["a"]


async def test_what_is_not_recorded_is_sent_at_the_next_turn(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_updates, "EVERY_S", 0.01)
    async with start() as server, connect(server.url, join("a")) as a, view(server, "?job=job") as viewer:
        run = await a.receive_goal(Goal.RUN)
        seen = replace(IDLE, run=run.run, round=1, phase=Phase.RUNNING)
        for step in (7, 8):
            await a.send(replace(seen, steps=(step,), step_age_s=0.0, beat=True))
            while nodes_of(await viewer.next("job"))[0]["steps"] != [step]:
                pass


async def test_of_a_job_that_has_ended_nothing_is_sent_but_that_the_connection_lives(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start() as server:
        async with connect(server.url, join("a")) as a:
            run = await a.receive_goal(Goal.RUN)
            await a.report(Phase.SUCCEEDED, run)
            await a.receive_goal(Goal.EXIT)
        while (await get(f"{server.url}/v1/jobs/job", JSON))[2]["nodes"]:
            pass
        monkeypatch.setattr(live_updates, "EVERY_S", 0.0)
        monkeypatch.setattr(live_updates, "ALIVE_S", 0.01)
        async with view(server, "?job=job") as viewer:
            kinds = [(await viewer.event())[0] for _ in range(6)]
    assert kinds == ["viewer", "jobs", "job", "alive", "alive", "alive"]


async def test_a_state_is_made_once_for_all_viewers(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_updates, "EVERY_S", 0.2)
    async with (
        start() as server,
        connect(server.url, join("a")),
        view(server, "?job=job") as first,
        view(server, "?job=job") as second,
    ):
        # Each has the time since which the job has been open, to the millisecond: states made apart are hardly ever the
        # same. On a busy machine, a viewer may miss one now and then.
        seen: list[set[bytes]] = [set(), set()]
        while len(seen[0] & seen[1]) < 3:
            assert len(seen[0] | seen[1]) < 60
            for blocks, viewer in zip(seen, (first, second), strict=True):
                blocks.add((await viewer.event())[2])


async def test_a_second_viewer_waits_for_the_state_that_is_being_made(start: Start) -> None:
    store = RoundsStore()
    store.may_answer.clear()
    async with start(store) as server:
        async with connect(server.url, join("a")) as a:
            await a.report(Phase.SUCCEEDED, await a.receive_goal(Goal.RUN))
            await a.receive_goal(Goal.EXIT)
        async with view(server, "?job=job") as first:
            await store.was_asked.wait()
            async with view(server, "?job=job") as second:
                assert await second.next("jobs")
                for _ in range(30):  # each is a turn for the second one, too
                    assert (await get(f"{server.url}/healthz"))[0] == 200
                store.may_answer.set()
                assert [(await each.next("job"))["status"]["state"] for each in (first, second)] == ["succeeded"] * 2
    assert store.asked == 1


async def test_nobody_is_sent_what_is_not_durable(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_updates, "EVERY_S", 0.0)
    store = SlowStore()
    async with start(store) as server, connect(server.url, join("a", nodes=3)):
        store.allowed.release()
        async with view(server, "?job=job") as viewer:
            await _until_nodes(viewer, 1)
            await store.asked.get()
            async with connect(server.url, join("b", nodes=3)):
                await store.asked.get()
                seen = asyncio.ensure_future(_until_nodes(viewer, 2))
                for _ in range(30):  # meanwhile others are served, each time with a turn for the viewer
                    assert (await get(f"{server.url}/healthz"))[0] == 200
                assert not seen.done()
                store.allowed.release()
                await seen


async def _until_nodes(viewer: Viewer, size: int) -> None:
    while len(nodes_of(await viewer.next("job"))) != size:
        pass


async def test_one_viewer_too_many_is_refused_until_another_one_goes(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_updates, "VIEWERS_MAX", 1)
    async with start() as server:
        async with view(server) as viewer:
            await viewer.next("jobs")
            status, _, received = await get(f"{server.url}/v1/stream")
            assert (status, received["error"]) == (503, "busy")
            assert received["message"] == "1 pages are open already, and this is one too many: close another one"
        async with asyncio.timeout(TIMEOUT_S), ClientSession() as client:
            while True:
                async with client.get(f"{server.url}/v1/stream") as answer:
                    if answer.status == 200:
                        break


async def test_the_end_of_the_server_is_a_clean_end_of_the_stream(start: Start) -> None:
    async with ClientSession() as client:
        async with start() as server:
            viewer = Viewer(await client.get(f"{server.url}/v1/stream"))
            await viewer.next("jobs")
        assert (await viewer.event())[0] == "end"  # what is cut off raises instead


@asynccontextmanager
async def talkative(server: Server) -> AsyncIterator[None]:
    """Have a job with so much data that a few hundred states fill every buffer of the kernel."""
    lines = ("\N{GRINNING FACE}" * LINE_MAX,) * LAST_LINES_MAX
    async with connect(server.url, join("a", spec=a_spec(1, 1, max_restarts=1))) as a:
        run = await a.receive_goal(Goal.RUN)
        await a.report(Phase.FAILED, run, a_failure(last_lines=lines))
        while (await a.receive_goal(Goal.RUN)).round < 2:
            pass
        yield


@asynccontextmanager
async def idler(server: Server) -> AsyncIterator[asyncio.StreamReader]:
    """Ask for the stream, and do not read it."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    made.setblocking(False)
    await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", server.port))
    reader, writer = await asyncio.open_connection(sock=made, limit=4_096)
    writer.write(b"GET /v1/stream?job=job HTTP/1.1\r\nHost: x\r\n\r\n")
    assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
    yield reader
    writer.close()


@pytest.fixture
def in_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the server send as often as it can."""
    monkeypatch.setattr(live_updates, "EVERY_S", 0.0)
    monkeypatch.setattr(live_updates, "SHARE", 100.0)


@pytest.mark.usefixtures("in_haste")
async def test_who_reads_slowly_skips_what_it_missed(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine, who reads nothing while the states are made is cut off before it reads.
    monkeypatch.setattr(app, "UNACKNOWLEDGED_MS", round(TIMEOUT_S * 1_000))
    async with start() as server, talkative(server), idler(server) as slow, view(server, "?job=job") as quick:
        made = 300
        for _ in range(made):
            newest = await quick.next("job")
        got, received = 0, b""
        async with asyncio.timeout(TIMEOUT_S):
            while _last_opened_s(received) <= newest["status"]["opened_s"]:
                received += await slow.read(2**20)
                *whole, rest = received.split(b"event: job\n")
                got += len(whole)
                received = rest
        assert 0 < got < made


def _last_opened_s(received: bytes) -> float:
    found = re.search(rb'"opened_s":([\d.]+),', received)
    return float(found[1]) if found else 0.0


@pytest.mark.usefixtures("in_haste")
async def test_who_does_not_read_at_all_is_let_go(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "UNACKNOWLEDGED_MS", 200)
    monkeypatch.setattr(live_updates, "VIEWERS_MAX", 1)
    async with start() as server, talkative(server), idler(server), asyncio.timeout(TIMEOUT_S):
        while await _status(server) == 503:
            pass


@pytest.mark.usefixtures("in_haste")
async def test_who_does_not_read_delays_no_end(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "UNACKNOWLEDGED_MS", round(4_000 * TIMEOUT_S))
    monkeypatch.setattr(app, "SHUTDOWN_S", 4 * TIMEOUT_S)
    stack = AsyncExitStack()
    server = await stack.enter_async_context(start())
    async with talkative(server), idler(server), view(server, "?job=job") as quick:
        for _ in range(300):  # by then, the other one's connection takes no more
            await quick.next("job")
        await asyncio.wait_for(stack.aclose(), TIMEOUT_S)


async def _status(server: Server) -> int:
    async with ClientSession() as client, client.get(f"{server.url}/v1/stream") as answer:
        return answer.status
