"""The time series of jobs: looked at while they live, told to the page, and begun with what the rounds tell."""

import asyncio

import pytest

from coordinatord.protocol.messages import Goal, Phase
from coordinatord.server.app import Server
from coordinatord.server.reads import series_sampler
from coordinatord.server.reads.series_sampler import SeriesSampler
from tests.coordinatord.server.conftest import Start
from tests.coordinatord.server.page.test_stream import view
from tests.support.builders import a_failure, a_spec
from tests.support.programs import TIMEOUT_S
from tests.support.raw_session import connect, join


async def fail_once(server: Server) -> None:
    """Let a job of one node train and fail, which costs a restart."""
    async with connect(server.url, join("a", spec=a_spec(nodes_min=1, nodes_max=1, max_restarts=3))) as a:
        run = await a.start_workers()
        await a.report(Phase.STOPPED, run, a_failure())
        await a.receive_goal(Goal.RUN)


async def test_the_page_is_sent_how_a_job_has_been(start: Start) -> None:
    async with start() as server, connect(server.url, join("a")) as a, view(server, "?job=job") as viewer:
        run = await a.receive_goal(Goal.RUN)
        before = await viewer.next("job")
        await a.report(Phase.RUNNING, run)
        async with asyncio.timeout(TIMEOUT_S):
            while (now := await viewer.next("job"))["status"]["state"] != "running":
                pass
        assert now["revision"] > before["revision"], "there is a new event"
        series = now["series"]
        assert series["upto_s"] >= now["status"]["opened_s"] - 0.01, "it goes up to the state"
        assert len(series["training_s"]) == len(series["restarts"]) == len(series["steps_per_s"])


async def test_a_job_that_nobody_looks_at_is_sampled_all_the_same(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(series_sampler, "SAMPLE_EVERY_S", 0.01)
    looked = asyncio.Event()
    monkeypatch.setattr(SeriesSampler, "sample_run", lambda *_: looked.set())
    async with start() as server, connect(server.url, join("a")), asyncio.timeout(TIMEOUT_S):
        await looked.wait()


async def test_a_sampler_that_begins_late_begins_with_the_rounds(start: Start) -> None:
    async with start() as server:
        await fail_once(server)
        [run] = server.driver.machine.jobs.values()
        series = SeriesSampler(server.driver).sample_run(run, run.durable.rounds)
        [ended, _] = run.durable.rounds
        assert ended.after is not None
        assert series.upto_s >= ended.after.total
        assert series.restarts[-1] == 1
