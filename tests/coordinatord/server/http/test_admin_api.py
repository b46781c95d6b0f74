"""Operators' requests over HTTP: what is done, what is answered, and which are refused."""

import asyncio
import json
from typing import Any
from urllib.parse import quote

import msgpack
import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer
from yarl import URL

from coordinatord.protocol.messages import Goal
from coordinatord.runtime.tasks import Tasks
from coordinatord.server.counters import Counters
from coordinatord.server.driver import Driver
from coordinatord.server.http import admin_api
from coordinatord.server.http.access_guard import AccessGuard
from coordinatord.server.http.admin_api import AdminApi
from coordinatord.server.http.request_body import PARSERS
from coordinatord.store.database_store import MemoryStore
from tests.coordinatord.server.conftest import Start
from tests.support.builders import a_coordinator
from tests.support.histories import records_in
from tests.support.raw_session import connect, get, join
from tests.support.stores import SlowStore

ALICE = {"by": "alice@login1", "reason": "maintenance"}
AHEAD = ALICE | {"ahead": True}


async def ask(url: str | URL, body: Any = ALICE, kind: str = "application/json") -> tuple[int, Any]:
    """Send a request over HTTP; return the status and the answer."""
    pack = msgpack.packb if "msgpack" in kind else lambda plain: json.dumps(plain).encode()
    data = body if isinstance(body, bytes) else pack(body)
    headers = {"Accept": "application/json", "Content-Type": kind}
    async with ClientSession(headers=headers) as client, client.post(url, data=data) as answer:
        return answer.status, await answer.json()


async def test_whatever_a_job_or_a_node_is_called_it_can_be_meant(start: Start) -> None:
    names = ["a/b", "a%2Fb", "..", "ä b?c#d%", "a}b", "{", "{job}", "{target}"]
    async with start() as server:
        for name in names:
            async with connect(server.url, join(name, job=name)) as a:
                await a.receive_goal(Goal.RUN)
                path = quote(name, safe="")
                for rest in ("", "/events"):
                    assert (await get(f"{server.url}/v1/jobs/{path}{rest}"))[2]["job"] == name
                assert (await ask(URL(f"{server.url}/v1/jobs/{path}/stop", encoded=True)))[0] == 200
                assert (await ask(URL(f"{server.url}/v1/nodes/{path}/drain", encoded=True)))[0] == 200
        assert [drained["node"] for drained in (await get(f"{server.url}/v1/jobs"))[2]["drained"]] == sorted(names)


async def test_why_may_be_left_out(start: Start) -> None:
    async with start() as server:
        asked = {"by": "alice", "ahead": True}
        assert (await ask(f"{server.url}/v1/nodes/a/drain", asked, "application/msgpack"))[0] == 200
        assert (await get(f"{server.url}/v1/jobs"))[2]["drained"][0]["reason"] == "a drained by alice"


NO_REQUESTS = [
    [],
    {},
    "alice",
    {"reason": ""},
    {"by": "", "reason": ""},
    {"by": 1, "reason": ""},
    {"by": "a\x1b[2J", "reason": ""},
    {"by": "alice", "reason": "", "more": 1},
    {"by": "alice", "reason": "", "ahead": "yes"},
    {"by": "alice", "after": [1]},
]


@pytest.mark.parametrize("kind", PARSERS)
@pytest.mark.usefixtures("collects_nothing")
async def test_what_is_no_request_is_refused_in_words(start: Start, kind: str) -> None:
    async with start() as server:
        for body in NO_REQUESTS:
            status, answer = await ask(f"{server.url}/v1/nodes/a/drain", body, kind)
            assert (status, answer["error"]) == (400, "malformed"), body
        for raw in (b"", b"{", b"\xc1", b"[" * 30_000, b"\x91" * 30_000):
            status, answer = await ask(f"{server.url}/v1/nodes/a/drain", raw, kind)
            assert (status, answer["error"]) == (400, "malformed"), raw[:9]
            assert not answer["message"].endswith(": ")
        assert (await get(f"{server.url}/v1/jobs"))[2]["drained"] == []


async def test_a_request_is_answered_when_it_is_durable(start: Start) -> None:
    store = SlowStore()
    async with start(store) as server:
        asked = asyncio.ensure_future(ask(f"{server.url}/v1/nodes/a/drain", AHEAD))
        [record] = await store.asked.get()
        assert (await get(f"{server.url}/healthz"))[0] == 200
        assert not asked.done()
        store.allowed.release()
        assert (await asked)[1]["done"] is True
        assert await records_in(store) == [record]


async def test_a_body_that_is_too_large_is_refused_in_words(start: Start) -> None:
    async with start() as server:
        status, answer = await ask(f"{server.url}/v1/nodes/a/drain", b"{" * 65_537)
        assert (status, answer) == (413, {"error": "too_large", "message": "a request has at most 65536 bytes"})


async def test_who_waits_for_a_disk_when_the_daemon_ends_is_answered(start: Start) -> None:
    store = SlowStore()
    async with start(store) as server:
        asked = asyncio.ensure_future(ask(f"{server.url}/v1/nodes/a/drain", AHEAD))
        await store.asked.get()
    status, answer = await asked
    assert (status, answer["error"]) == (503, "cannot_record")
    assert answer["message"].startswith("coordinatord ends")


async def test_who_asks_at_the_last_moment_is_answered_too() -> None:
    ending = AdminApi(Driver(a_coordinator(), MemoryStore(), Tasks(), Counters()))
    ending.close()
    app = web.Application(middlewares=[AccessGuard(None, "").guard])
    app.add_routes(ending.routes)
    async with TestServer(app) as server:
        status, answer = await ask(str(server.make_url("/v1/nodes/a/drain")))
    assert (status, answer["error"]) == (503, "cannot_record")


async def test_requests_in_progress_are_limited(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_api, "REQUESTS_AT_ONCE_MAX", 1)
    store = SlowStore()
    async with start(store) as server:
        first = asyncio.ensure_future(ask(f"{server.url}/v1/nodes/a/drain", AHEAD))
        await store.asked.get()
        assert (await ask(f"{server.url}/v1/nodes/b/drain", AHEAD))[0] == 503
        store.allowed.release()
        assert (await first)[0] == 200
