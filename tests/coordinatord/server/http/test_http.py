"""The HTTP API, and the error when the server cannot listen."""

import pytest
from aiohttp import ClientSession

from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.state.run import Health
from coordinatord.protocol.messages import Goal
from coordinatord.runtime import __version__
from coordinatord.server.app import ListenAddress, ListenError, serve
from coordinatord.store.database_store import MemoryStore
from tests.coordinatord.server.conftest import Start
from tests.support.raw_session import connect, get, join, until


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", "application/json"),
        ("*/*", "application/json"),
        ("application/json", "application/json"),
        ("application/msgpack", "application/msgpack"),
        ("text/html, application/json;q=0.9", "application/json"),
    ],
)
async def test_answers_are_json_and_on_demand_msgpack(start: Start, accept: str, kind: str) -> None:
    async with start() as server:
        health = {"status": "ok", "reason": "", "version": __version__, "jobs": 0, "sessions": 0, "insecure": True}
        assert await get(f"{server.url}/healthz", accept) == (200, kind, health)
        nothing = {"jobs": [], "drained": [], "charged": [], "insecure": True, "shared": None}
        assert await get(f"{server.url}/v1/jobs", accept) == (200, kind, nothing)


async def test_health_says_of_how_many_jobs_no_node_is_heard(start: Start) -> None:
    async with start(reconnect_grace_s=0.01) as server:
        for job in ("left", "heard"):
            async with connect(server.url, join("a", job=job)) as a:
                await a.start_workers()
                await a.beat()
                await a.receive_goal(Goal.RUN)
                if job == "heard":
                    await until(lambda: server.driver.machine.jobs["left"].health is Health.SILENT)
                    _, _, health = await get(f"{server.url}/healthz")
        assert (health["status"], health["reason"]) == ("ok", "no node is heard of 1 of 2 live jobs")


async def test_an_error_has_the_form_of_any_answer(start: Start) -> None:
    kind = "application/msgpack"
    async with start() as server:
        status, found, body = await get(f"{server.url}/v1/nowhere", kind)
        answered = {"error": "unknown_path", "message": "nothing is served at /v1/nowhere"}
        assert (status, found, body) == (404, kind, answered)
        async with ClientSession(headers={"Accept": kind}) as client, client.post(f"{server.url}/v1/jobs") as answer:
            assert (answer.status, answer.content_type, answer.headers["Allow"]) == (405, kind, "GET, HEAD")
            assert b"takes GET, HEAD, not POST" in await answer.read()


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
