"""What a coordinator answers that stands by, and that one which may not speak says nothing."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest

from coordinatord.protocol.access_token import BEARER, Role
from coordinatord.protocol.http.api import CoordinatorStatus, JobsAnswer, SharedStatus
from coordinatord.protocol.messages import SESSION_PATH, Desired
from coordinatord.protocol.schema import check
from coordinatord.runtime.websocket.handshake import REASON
from coordinatord.server.driver import Sharing
from coordinatord.server.sessions.connection_limits import ADDRESS_SHARE, ConnectionLimits
from coordinatord.server.standby import serve_standby
from coordinatord.store.etcd.roster import Coordinatord
from coordinatord.store.interface import LeadershipLostError
from tests.coordinatord.server.conftest import Start
from tests.coordinatord.server.metrics.test_metrics import scraped
from tests.support.raw_session import connect, get, join
from tests.support.raw_websocket import HALF, WHOLE, wire
from tests.support.secured import TRUSTING, Secured, secured

FEW = ConnectionLimits(pending=4, joining=4, requests=8, nodes=3)

LEADER = Coordinatord("h1", "h1.example:29400", secure=True, since=0.0)


@asynccontextmanager
async def standby(
    leader: Coordinatord | None,
    *,
    why: str = "",
    limits: ConnectionLimits | None = None,
    ours: Secured | None = None,
    tls: bool = False,
) -> AsyncIterator[str]:
    """Stand by for everybody, or for those with a token of `ours`; yield the address."""
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    gatekeeper = ours.security.gatekeeper if ours else None
    context = (lambda: ours.security.context) if ours and tls else None
    async with serve_standby([listener], lambda: leader, gatekeeper, context, limits, why=lambda: why):
        yield url


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
        assert (await get(f"{url}/healthz"))[::2] == (503, {"status": "nobody leads", "reason": ""})


async def test_where_nobody_leads_it_says_why() -> None:
    async with standby(None, why="etcd is änderswo\n" + "x" * 1000) as url, aiohttp.ClientSession() as http:
        async with http.get(url + SESSION_PATH) as answer:
            said = (await answer.json())["message"]
            assert said.startswith("this coordinator stands by, and nobody leads: etcd is änderswo")
            assert answer.headers[REASON].startswith("stands by, and nobody leads: etcd is ?nderswo")
            assert len(said) < 400
        assert (await get(f"{url}/healthz"))[2]["reason"].startswith("etcd is änderswo")


@pytest.mark.parametrize("said", [b"", b"GE", HALF], ids=["nothing", "a word", "half a request"])
async def test_whoever_has_not_asked_yet_hears_the_end_when_it_stands_by_no_more(said: bytes) -> None:
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(standby(LEADER))
        async with wire(url, said) as first:
            await get(f"{url}/healthz")  # so it has taken in what came before
            await stack.aclose()
            with suppress(ConnectionResetError):
                await first.end()


async def test_it_says_of_itself_how_it_is() -> None:
    async with standby(LEADER) as url, aiohttp.ClientSession() as http:
        assert (await get(f"{url}/healthz"))[::2] == (200, {"status": "standby", "reason": ""})
        async with http.get(f"{url}/metrics", allow_redirects=False) as answer:
            assert answer.status == 200
            figures = [line for line in (await answer.text()).splitlines() if not line.startswith("#")]
            assert figures == ["coordinatord_leading 0.0"]


async def test_a_stranger_does_not_learn_why_nobody_leads(tmp_path: Path) -> None:
    ours = secured(tmp_path)
    token = {"Authorization": f"{BEARER}{ours.add('reader', Role.READ).text}"}
    async with standby(None, why="etcd is away", ours=ours) as url, aiohttp.ClientSession() as http:
        for headers, more in (({}, {}), (token, {"reason": "etcd is away"})):
            async with http.get(f"{url}/healthz", headers=headers) as answer:
                assert await answer.json() == {"status": "nobody leads"} | more


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/jobs"), ("GET", "/"), ("GET", "/page/x"), ("POST", "/v1/page/session"), ("HEAD", "/metrics")],
)
async def test_a_stranger_does_not_learn_who_leads(tmp_path: Path, method: str, path: str) -> None:
    ours = secured(tmp_path)
    token = {"Authorization": f"{BEARER}{ours.add('reader', Role.READ).text}"}
    async with standby(LEADER, ours=ours) as url, aiohttp.ClientSession() as http:
        async with http.request(method, url + path, allow_redirects=False) as answer:
            assert answer.status == 401
            assert "Location" not in answer.headers
        assert (await get(f"{url}/healthz"))[::2] == (200, {"status": "standby"})
        async with http.get(f"{url}/v1/jobs", headers=token, allow_redirects=False) as answer:
            assert answer.status == 307


@pytest.mark.parametrize("tls", [False, True])
async def test_who_connects_and_asks_nothing_takes_the_place_of_nobody_else(tmp_path: Path, *, tls: bool) -> None:
    of_address = int(FEW.pending_max(0) * ADDRESS_SHARE)
    ours = secured(tmp_path) if tls else None
    async with standby(LEADER, limits=FEW, ours=ours, tls=tls) as url, AsyncExitStack() as stack:
        said = b"" if tls else HALF
        flood = [await stack.enter_async_context(wire(url, said)) for _ in range(of_address + 2)]
        for gone in flood[:2]:
            await gone.end()
        async with wire(url, WHOLE, tls=TRUSTING if tls else None) as other:
            assert b" 200 OK" in await other.answer()


async def test_an_address_has_so_many_connections_and_no_more() -> None:
    async with standby(LEADER, limits=FEW) as url, AsyncExitStack() as stack:
        for _ in range(FEW.requests_per_address):
            kept = await stack.enter_async_context(wire(url, WHOLE))
            assert b" 200 OK" in await kept.answer()
        other = await stack.enter_async_context(wire(url, WHOLE))
        assert b"connections over HTTP from 127.0.0.1 already, the limit: close some" in await other.answer()
        await other.end()


async def test_one_that_may_not_speak_shows_nothing_that_may_be_old(start: Start) -> None:
    speaks = True
    async with start(sharing=Sharing(may_act=lambda: speaks)) as server:
        assert (await get(f"{server.url}/v1/jobs"))[0] == 200
        speaks = False
        for path in ("/v1/jobs", "/healthz", "/metrics", "/v1/stream"):
            status, _, answer = await get(server.url + path)
            assert (status, answer["error"]) == (503, "standby")


async def test_who_leads_and_who_stands_by_is_shown(start: Start) -> None:
    shared = SharedStatus(
        leader=CoordinatorStatus(host="h1", endpoint="h1:29400", since=5.0),
        standbys=(CoordinatorStatus(host="h2", endpoint="h2:29400", since=6.0),),
        lease_s=4.5,
    )
    async with start(sharing=Sharing(status=lambda: shared)) as server:
        assert check((await get(f"{server.url}/v1/jobs"))[2], JobsAnswer, "answer").shared == shared
        scrape = await scraped(server)
        assert (scrape("leading"), scrape("standbys"), scrape("lease_seconds")) == (1, 1, 4.5)


async def test_one_that_may_not_speak_answers_no_node_and_ends(start: Start) -> None:
    speaks = True
    async with start(sharing=Sharing(may_act=lambda: speaks)) as server, connect(server.url, join("a")) as peer:
        await peer.receive(Desired)
        speaks = False
        await peer.beat()
        with pytest.raises(LeadershipLostError, match="this one decides nothing more"):
            await server.tasks.guard(asyncio.get_running_loop().create_future())
        assert server.driver.machine.sessions == 1
    assert peer.socket.closed or (await peer.socket.receive()).type is not aiohttp.WSMsgType.BINARY
