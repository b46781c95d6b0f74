"""Answers that many ask for: made once for all, and not too often; durable, and not older than what was recorded."""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest
from aiohttp import ClientSession

from coordinatord.core.rounds.state.run import Health, Run
from coordinatord.core.shown.job_view import job_view
from coordinatord.protocol.http.api import JobStatus
from coordinatord.protocol.messages import Goal, Phase
from coordinatord.runtime import __version__
from coordinatord.server import driver
from coordinatord.server.driver import iterate_jobs
from coordinatord.server.http import jobs_api
from tests.coordinatord.server.conftest import Start
from tests.coordinatord.server.http.test_admin_api import AHEAD, ask
from tests.support.raw_session import connect, get, join, until
from tests.support.stores import SlowStore

NEVER_S = 3_600.0

JSON = "application/json"


@pytest.fixture
def dear(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function that makes each answer one that has to rest for so many seconds."""

    def rest(seconds: float) -> None:
        monkeypatch.setattr(jobs_api, "UNCACHED_S", 0.0)
        monkeypatch.setattr(jobs_api, "SHARE", 1e-12)
        monkeypatch.setattr(jobs_api, "MAX_AGE_S", seconds)

    return rest


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the views of jobs that are made, by job."""
    counts: Counter[str] = Counter()

    def counted(run: Run, now: float, trouble: str | None) -> JobStatus:
        counts[run.job] += 1
        return job_view(run, now, trouble)

    for module in (jobs_api, sys.modules[job_view.__module__]):
        monkeypatch.setattr(module, "job_view", counted)
    return counts


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/jobs/mnist"])
async def test_what_many_ask_for_is_made_once(
    start: Start, dear: Callable[[float], None], made: Counter[str], path: str
) -> None:
    dear(NEVER_S)
    async with start() as server, connect(server.url, join("a", job="mnist", nodes=2)) as a:
        await a.receive_goal(Goal.WAIT)
        async with ClientSession(headers={"Accept": JSON}) as client:

            async def read() -> bytes:
                async with client.get(f"{server.url}{path}") as answer:
                    assert (answer.status, answer.content_type) == (200, JSON)
                    return await answer.read()

            bodies = await asyncio.gather(*(read() for _ in range(20)))
        assert (len(set(bodies)), made) == (1, {"mnist": 1})
        await get(f"{server.url}{path}", "application/msgpack")
        assert made == {"mnist": 2}, "once more, encoded otherwise"


async def test_what_was_recorded_before_somebody_asks_is_shown(start: Start, dear: Callable[[float], None]) -> None:
    dear(0.02)
    async with start() as server:
        for node in "abc":
            await ask(f"{server.url}/v1/nodes/{node}/drain", AHEAD)
            answered = (await get(f"{server.url}/v1/jobs", JSON))[2]
            assert answered["drained"][-1]["node"] == node


async def test_what_is_dear_is_made_anew_after_its_rest_alone(
    start: Start, dear: Callable[[float], None], made: Counter[str]
) -> None:
    dear(NEVER_S)
    async with start() as server, connect(server.url, join("a", nodes=2)) as a:
        await a.receive_goal(Goal.WAIT)
        await get(f"{server.url}/v1/jobs")
        await ask(f"{server.url}/v1/nodes/x/drain", AHEAD)
        asked = asyncio.ensure_future(get(f"{server.url}/v1/jobs"))
        for _ in range(10):  # others are served meanwhile
            assert (await get(f"{server.url}/healthz"))[0] == 200
        assert (asked.done(), made) == (False, {"job": 1})
        asked.cancel()


async def test_what_is_cheap_says_how_it_is_right_then(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_api, "UNCACHED_S", NEVER_S)
    async with start() as server, connect(server.url, join("a", nodes=2)) as a, connect(server.url, join("b", nodes=2)):
        run = await a.receive_goal(Goal.RUN)
        for phase in (Phase.STARTING, Phase.RUNNING):  # neither is recorded, while the other node has not begun
            await a.report(phase, run)
            await a.beat()
            await a.receive_goal(Goal.RUN)
            node = (await get(f"{server.url}/v1/jobs/job"))[2]["nodes"][0]
            assert node["state"] == {Phase.STARTING: "assigned", Phase.RUNNING: "running"}[phase]


async def test_an_answer_may_wait_for_the_end_of_the_run(start: Start) -> None:
    async with start() as server, connect(server.url, join("a")) as a:
        run = await a.receive_goal(Goal.RUN)
        for within_s, exit_code in (("0.01", None), ("30", 0), ("30", 0)):
            asked = asyncio.ensure_future(get(f"{server.url}/v1/jobs/job?wait={within_s}", JSON))
            for _ in range(10):  # others are served meanwhile
                assert (await get(f"{server.url}/healthz"))[0] == 200
            if exit_code == 0:
                await a.report(Phase.SUCCEEDED, run)
            assert (await asked)[2]["exit_code"] == exit_code
        status, _, body = await get(f"{server.url}/v1/jobs/job?wait=-1", JSON)
        assert (status, body["message"]) == (400, "wait is how many seconds to wait for the end of the run, not '-1'")


async def test_an_unknown_job_is_looked_for_again_each_time(start: Start, dear: Callable[[float], None]) -> None:
    dear(NEVER_S)
    async with start() as server:
        assert (await get(f"{server.url}/v1/jobs/job"))[0] == 404
        async with connect(server.url, join("a", nodes=2)) as a:
            await a.receive_goal(Goal.WAIT)
            assert (await get(f"{server.url}/v1/jobs/job"))[0] == 200
            status, _, body = await get(f"{server.url}/v1/jobs/jbo", JSON)
            assert (status, body["message"]) == (404, "no job 'jbo' is known here; did you mean 'job'?")


async def test_jobs_are_read_in_pieces_and_one_that_is_forgotten_meanwhile_is_not_read(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "NODES_AT_ONCE", 0)
    async with start() as server:
        for job in "xyz":
            async with connect(server.url, join("a", job=job)) as a:
                run = await a.receive_goal(Goal.RUN)
                await a.report(Phase.SUCCEEDED, run)
                await a.receive_goal(Goal.EXIT)
        await until(lambda: not any(run.members for run in server.driver.machine.jobs.values()))
        read = iterate_jobs(server.driver)
        assert (await anext(read)).job == "x"
        assert (await ask(f"{server.url}/v1/jobs/y/forget"))[0] == 200
        others: list[str] = []
        asyncio.get_running_loop().call_soon(others.append, "had their turn")
        assert ((await anext(read)).job, others) == ("z", ["had their turn"])
        assert [run async for run in read] == []


async def test_what_is_read_after_a_pause_is_durable_as_well(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "NODES_AT_ONCE", 0)
    store = SlowStore()
    async with start(store) as server, AsyncExitStack() as stack:
        for job in "xy":
            store.allowed.release()
            node = await stack.enter_async_context(connect(server.url, join("a", job=job, nodes=2)))
            await node.receive_goal(Goal.WAIT)
            await store.asked.get()
        read = iterate_jobs(server.driver)
        assert (await anext(read)).job == "x"
        asking = asyncio.ensure_future(ask(f"{server.url}/v1/nodes/b/drain", AHEAD))
        await store.asked.get()
        following = asyncio.ensure_future(anext(read))
        assert (await get(f"{server.url}/healthz"))[0] == 200
        assert not following.done()
        store.allowed.release()
        assert (await following).job == "y"
        assert (await asking)[0] == 200


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
