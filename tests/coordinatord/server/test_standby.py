"""What a coordinator answers that stands by, and that one which may not speak says nothing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from coordinatord.core.policy import Policy
from coordinatord.protocol.access_token import BEARER, Role
from coordinatord.protocol.messages import SESSION_PATH, Desired
from coordinatord.server.app import serve
from coordinatord.server.standby import serve_standby
from coordinatord.store.etcd.leadership import Coordinatord
from coordinatord.store.interface import LeadershipLostError
from coordinatord.store.memory_store import MemoryStore
from tests.support.raw_session import connect, join
from tests.support.secured import secured

pytestmark = pytest.mark.asyncio

LEADER = Coordinatord("h1", "h1.example:29400", secure=True, since=0.0)


@asynccontextmanager
async def standby(leader: Coordinatord | None) -> AsyncIterator[str]:
    """Stand by in the clear; yield the address."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    async with serve_standby([listener], lambda: leader, None, None):
        yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("path", ["/v1/jobs?all=1", SESSION_PATH, "/", "/v1/jobs/mnist/stop"])
async def test_whatever_is_asked_the_leader_is_named(path: str) -> None:
    async with standby(LEADER) as url, aiohttp.ClientSession() as http:
        async with http.get(url + path, allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (307, f"https://h1.example:29400{path}")
            assert (await answer.json())["error"] == "standby"
        async with http.post(url + path, data=b"x", allow_redirects=False) as answer:
            assert answer.status == 307


async def test_where_nobody_leads_it_says_when_to_ask_again() -> None:
    async with standby(None) as url, aiohttp.ClientSession() as http:
        async with http.get(f"{url}/v1/jobs") as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
            assert await answer.json() == {
                "error": "standby",
                "message": "this coordinator stands by, and nobody leads: try again",
            }
        async with http.get(f"{url}/healthz") as answer:
            assert (answer.status, await answer.json()) == (503, {"status": "nobody leads"})


async def test_it_says_of_itself_how_it_is() -> None:
    async with standby(LEADER) as url, aiohttp.ClientSession() as http:
        async with http.get(f"{url}/healthz", allow_redirects=False) as answer:
            assert (answer.status, await answer.json()) == (200, {"status": "standby"})
        async with http.get(f"{url}/metrics", allow_redirects=False) as answer:
            assert answer.status == 200
            figures = [line for line in (await answer.text()).splitlines() if not line.startswith("#")]
            assert figures == ["coordinatord_leading 0.0"]


async def test_a_stranger_does_not_learn_who_leads(tmp_path: Path) -> None:
    ours = secured(tmp_path)
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/jobs"
    async with (
        serve_standby([listener], lambda: LEADER, ours.security.gatekeeper, None),
        aiohttp.ClientSession() as http,
    ):
        async with http.get(url, allow_redirects=False) as answer:
            assert answer.status == 401
        token = {"Authorization": f"{BEARER}{ours.add('reader', Role.READ).text}"}
        async with http.get(url, headers=token, allow_redirects=False) as answer:
            assert answer.status == 307


async def test_one_that_may_not_speak_answers_no_node_and_ends() -> None:
    speaks = True
    async with (
        serve("127.0.0.1", 0, Policy(), MemoryStore(), may_speak=lambda: speaks) as server,
        connect(server.url, join("a")) as peer,
    ):
        await peer.receive(Desired)
        speaks = False
        await peer.beat()
        with pytest.raises(LeadershipLostError, match="this one says nothing more"):
            await server.until(asyncio.get_running_loop().create_future())
        assert server.driver.machine.sessions == 1
    assert peer.socket.closed or (await peer.socket.receive()).type is not aiohttp.WSMsgType.BINARY
