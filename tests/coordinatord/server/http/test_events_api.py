"""What happened, over HTTP: as a list, and as server-sent events that go on."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientResponse, ClientSession

from coordinatord.protocol.messages import Goal, Phase
from coordinatord.server.http import events_api
from coordinatord.store.sqlite_store import SqliteStore
from tests.coordinatord.server.conftest import Start
from tests.coordinatord.server.http.test_admin_api import ask
from tests.support.programs import TIMEOUT_S
from tests.support.raw_session import connect, get, join


@asynccontextmanager
async def following(url: str, after: str | None = None) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """Follow what happens; yield an iterator over the events."""
    headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": after} if after is not None else {})
    async with ClientSession(headers=headers) as client, client.get(url) as answer:
        assert (answer.status, answer.content_type) == (200, "text/event-stream")
        yield _events(answer)


async def _events(answer: ClientResponse) -> AsyncIterator[dict[str, Any]]:
    async with asyncio.timeout(TIMEOUT_S):
        async for line in answer.content:
            if line.startswith(b"data: "):
                yield json.loads(line.removeprefix(b"data: "))


async def test_a_list_is_narrowed_to_the_newest_to_kinds_and_to_an_age(start: Start) -> None:
    async with start() as server, connect(server.url, join("a", job="mnist")) as a:
        await a.receive_goal(Goal.RUN)

        async def answered(query: str) -> list[str]:
            _, _, body = await get(f"{server.url}/v1/jobs/mnist/events?{query}")
            return [event["kind"] for event in body["events"]]

        assert await answered("last=1") == ["RoundFormed"]
        assert await answered("kind=node-joined&kind=RunOpened") == ["RunOpened", "NodeJoined"]
        assert await answered("kind=Round%20Formed,node_lost&since=600") == ["RoundFormed"]
        assert await answered("since=0") == []
        async with following(f"{server.url}/v1/jobs/mnist/events?last=2") as events:
            assert [(await anext(events))["number"] for _ in range(2)] == [2, 3]


WRONG = (
    *("last=0", "last=1001", "last=x", "since=-1", "since=nan", "kind=", "kind=NodeLust"),
    *("after=-1", "after=x", "after=1.5", "after=%C2%B2", f"after={'9' * 21}"),
)


async def test_a_query_that_makes_no_sense_is_said(start: Start) -> None:
    async with start() as server:
        for query in WRONG:
            status, _, body = await get(f"{server.url}/v1/events?{query}")
            assert (status, body["error"]) == (400, "malformed"), query


async def test_who_follows_hears_what_was_and_what_comes(start: Start) -> None:
    async with start() as server, connect(server.url, join("a")) as a:
        run = await a.receive_goal(Goal.RUN)
        async with following(f"{server.url}/v1/jobs/job/events") as events:
            for what in ("run opened", "node joined", "round formed"):
                assert (await anext(events))["what"] == what
            await a.report(Phase.RUNNING, run)
            last = await anext(events)
            assert (last["what"], last["number"]) == ("round started", 4)
        async with following(f"{server.url}/v1/jobs/job/events", after="3") as events:
            assert (await anext(events))["number"] == 4


async def test_the_last_thing_that_is_heard_of_a_job_is_that_it_is_forgotten(start: Start, tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "state")
    async with start(store) as server:
        async with connect(server.url, join("a")) as a:
            run = await a.receive_goal(Goal.RUN)
            await a.report(Phase.SUCCEEDED, run)
            await a.receive_goal(Goal.EXIT)
        async with following(f"{server.url}/v1/jobs/job/events") as events:
            numbers = [(await anext(events))["number"] for _ in range(6)]
            await ask(f"{server.url}/v1/jobs/job/forget")
            forgotten = [event async for event in events]
        assert [event["what"] for event in forgotten] == ["job forgotten"]
        assert (await get(f"{server.url}/v1/jobs/job/events"))[0] == 404
        async with connect(server.url, join("b", nodes=2)) as b:
            await b.receive_goal(Goal.WAIT)
            _, _, body = await get(f"{server.url}/v1/jobs/job/events?after={numbers[-1]}")
        assert [event["what"] for event in body["events"]] == ["job forgotten", "run opened", "node joined"]
    await store.close()


async def test_a_number_of_another_store_is_no_reason_to_say_nothing(start: Start) -> None:
    async with start() as server, connect(server.url, join("a")) as a:
        await a.receive_goal(Goal.RUN)
        _, _, body = await get(f"{server.url}/v1/jobs/job/events?after=900")
        assert len(body["events"]) == 3
        async with following(f"{server.url}/v1/jobs/job/events", after="900") as events:
            assert (await anext(events))["number"] == 1


async def test_silence_is_broken_now_and_then(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_api, "QUIET_S", 0.01)
    async with (
        start() as server,
        ClientSession(headers={"Accept": "text/event-stream"}) as client,
        client.get(f"{server.url}/v1/events") as answer,
        asyncio.timeout(TIMEOUT_S),
    ):
        for _ in range(3):
            assert await answer.content.readuntil(b"\n\n") == b": nothing new\n\n"


async def test_followers_are_limited(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_api, "FOLLOWERS_MAX", 1)
    async with (
        start() as server,
        following(f"{server.url}/v1/events"),
        ClientSession(headers={"Accept": "text/event-stream"}) as client,
        client.get(f"{server.url}/v1/events") as answer,
    ):
        assert answer.status == 503


async def test_who_follows_is_let_go_when_the_server_ends(start: Start) -> None:
    async with start() as server:
        stream = following(f"{server.url}/v1/events")
        events = await stream.__aenter__()
    assert [event async for event in events] == []
    await stream.__aexit__(None, None, None)
