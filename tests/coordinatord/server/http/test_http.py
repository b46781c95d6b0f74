"""The HTTP API, and the error when the server cannot listen."""

from __future__ import annotations

import socket
from urllib.parse import quote

import pytest
from aiohttp import ClientSession

from coordinatord.core.policy import Policy
from coordinatord.core.values.health import Health
from coordinatord.protocol.messages import PROTOCOL_VERSION, Goal, Phase
from coordinatord.runtime import __version__
from coordinatord.server.app import ListenAddress, ListenError, serve
from coordinatord.store.memory_store import MemoryStore
from tests.coordinatord.server.conftest import Start
from tests.support.raw_session import connect, get, join, until

pytestmark = pytest.mark.asyncio

JSON = {"Accept": "application/json"}


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
        nothing = {"jobs": [], "drained": [], "insecure": True, "shared": None}
        assert await get(f"{server.url}/v1/jobs", accept) == (200, kind, nothing)


async def test_health_says_of_how_many_jobs_no_node_is_heard(start: Start) -> None:
    async with start(reconnect_grace_s=0.01) as server:
        for job in ("left", "heard"):
            async with connect(server.url, join("a", job=job)) as a:
                await a.report(Phase.RUNNING, await a.receive_goal(Goal.RUN))
                await a.beat()
                await a.receive_goal(Goal.RUN)
                if job == "heard":
                    await until(lambda: server.driver.machine.jobs["left"].health is Health.SILENT)
                    _, _, health = await get(f"{server.url}/healthz")
        assert (health["status"], health["reason"]) == ("ok", "no node is heard of 1 of 2 live jobs")


async def test_a_job_is_shown_whole(start: Start) -> None:
    async with start() as server, connect(server.url, join("a", job="mnist", release="0.9.1")) as a:
        run = await a.receive_goal(Goal.RUN)
        await a.report(Phase.RUNNING, run)
        await a.beat()
        await a.receive_goal(Goal.RUN)
        _, _, job = await get(f"{server.url}/v1/jobs/mnist", "application/json")
        _, _, jobs = await get(f"{server.url}/v1/jobs")
        [node] = job["nodes"]
        assert 0 <= node.pop("last_seen_s") < 60
        assert node == {
            "node": "a",
            "host": "host",
            "address": "127.0.0.1",
            "state": "running",
            "reason": "its workers are running",
            "drained": False,
            "group_rank": 0,
            "ranks": [0],
            "pids": [],
            "log_dir": None,
            "steps": [],
            "step_age_s": None,
            "release": "0.9.1",
            "protocol": PROTOCOL_VERSION,
            "behind": 0,
            "kept": None,
            "late": None,
            "begun": None,
        }
        ledger = job["ledger"]
        assert sum(ledger["seconds"].values()) == pytest.approx(ledger["total"])
        [only] = job["rounds"]
        assert (only["round"], only["nodes"], only["workers"], only["formed"]) == (
            1,
            1,
            1,
            "formed of node a, all that --nnodes allows",
        )
        timed = {"nodes", "reason", "opened_s", "state_s", "ledger", "rounds"}
        assert {name: job[name] for name in job if name not in timed} == {
            "job": "mnist",
            "run": run.run,
            "state": "running",
            "health": "well",
            "exit_code": None,
            "round": 1,
            "world_size": 1,
            "begun": None,
            "restarts": {"used": 0, "max": 0},
            "progress": {"step": None, "steps_per_s": None, "reached": None, "idle_s": None, "usual_s": None},
            "kept": None,
            "lost": [],
            "earlier": [],
            "spares": 0,
            "missing": {"count": 0, "nodes": []},
            "failure": None,
            "laggard": None,
        }
        assert [job["job"] for job in jobs["jobs"]] == ["mnist"]


@pytest.mark.parametrize("job", ["team/mnist", "ä b?c#d%", "..", "a%2Fb", "mnist-{seed}", "{job}"])
async def test_a_job_of_any_name_is_found(start: Start, job: str) -> None:
    async with start() as server, connect(server.url, join("a", job=job, nodes=2)) as a:
        await a.receive_goal(Goal.WAIT)
        status, _, shown = await get(f"{server.url}/v1/jobs/{quote(job, safe='')}", "application/json")
        assert (status, shown["job"]) == (200, job)
        assert (await get(f"{server.url}/v1/jobs/{quote(job, safe='')}/events"))[2]["job"] == job


async def test_an_unknown_job_is_a_typed_404(start: Start) -> None:
    async with start() as server:
        status, _, body = await get(f"{server.url}/v1/jobs/nosuch", "application/json")
        assert status == 404
        assert body == {"error": "unknown_job", "message": "no job 'nosuch' is known here"}


@pytest.mark.parametrize("kind", ["application/json", "application/msgpack"])
async def test_an_error_has_the_form_of_any_answer(start: Start, kind: str) -> None:
    async with start() as server:
        status, found, body = await get(f"{server.url}/v1/nowhere", kind)
        answered = {"error": "unknown_path", "message": "nothing is served at /v1/nowhere"}
        assert (status, found, body) == (404, kind, answered)
        async with ClientSession(headers={"Accept": kind}) as client, client.post(f"{server.url}/v1/jobs") as answer:
            assert (answer.status, answer.content_type, answer.headers["Allow"]) == (405, kind, "GET, HEAD")
            assert b"takes GET, HEAD, not POST" in await answer.read()


async def test_a_plain_request_for_a_session_is_a_client_error(start: Start) -> None:
    async with start() as server, ClientSession() as client, client.get(f"{server.url}/v1/session") as answer:
        assert answer.status == 400


async def test_a_port_in_use_is_said_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=rf"port {port} on 127.0.0.1 is in use: .*--port"):
            async with serve(ListenAddress("127.0.0.1", port), Policy(), MemoryStore()):
                pass


@pytest.mark.parametrize("host", ["203.0.113.7", "no-such-host.invalid"])
async def test_a_foreign_address_is_said_with_what_to_do(host: str) -> None:
    with pytest.raises(ListenError, match=rf"{host} is no address of this host .*see --host"):
        async with serve(ListenAddress(host, 0), Policy(), MemoryStore()):
            pass


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]"), ("::", "[::]")])
async def test_the_url_is_one(host: str, shown: str) -> None:
    async with serve(ListenAddress(host, 0), Policy(), MemoryStore()) as server:
        assert server.url == f"http://{shown}:{server.port}"
        assert (await get(f"{server.url.replace('[::]', '127.0.0.1')}/healthz"))[0] == 200
