"""The rounds of a job that is over come from the store, for the API and for the page, and few of them are kept."""

from typing import Any

import pytest
from msgspec.structs import replace

from coordinatord.core.rounds.values.records import Record
from coordinatord.protocol.messages import Goal, Phase
from coordinatord.runtime.tasks import Tasks
from coordinatord.server.app import Server
from coordinatord.server.counters import Counters
from coordinatord.server.driver import Driver
from coordinatord.server.reads import rounds_reader
from coordinatord.server.reads.rounds_reader import RoundsReader
from coordinatord.store.database_store import MemoryStore, Store
from tests.coordinatord.server.conftest import Start
from tests.coordinatord.server.page.test_stream import view
from tests.support.builders import a_coordinator, a_failure, a_spec
from tests.support.histories import JOB, RUN, a_join_of, a_round_of, a_start_of, an_end, an_opening, made_at
from tests.support.raw_session import connect, get, join
from tests.support.stores import RoundsStore

ENDED = (an_opening(), a_join_of("n1"), a_join_of("n2"), a_round_of("n1", "n2"), a_start_of(), an_end())


async def fail_once_and_succeed(server: Server) -> None:
    async with connect(server.url, join("a", spec=a_spec(nodes_min=1, nodes_max=1, max_restarts=3))) as a:
        run = await a.start_workers()
        await a.report(Phase.STOPPED, run, a_failure())
        await a.report(Phase.SUCCEEDED, await a.receive_goal(Goal.RUN))
        await a.receive_goal(Goal.EXIT)


async def ask(server: Server) -> tuple[int, Any]:
    return (await get(f"{server.url}/v1/jobs/job"))[::2]


async def page_of(server: Server) -> Any:
    async with view(server, "?job=job") as viewer:
        return await viewer.next("job")


async def test_the_rounds_of_a_job_that_is_over_are_shown(start: Start) -> None:
    async with start() as server:
        await fail_once_and_succeed(server)
        [run] = server.driver.machine.jobs.values()
        assert not list(run.durable.rounds)
        _, shown = await ask(server)
        paged = await page_of(server)
    assert shown["state"] == "succeeded"
    assert [(round_["round"], round_["nodes"], round_["charged"]) for round_ in shown["rounds"]] == [
        (1, 1, True),
        (2, 1, False),
    ]
    assert [round_["round"] for round_ in paged["status"]["rounds"]] == [1, 2]
    assert paged["series"]["restarts"][-1] == 1


async def test_rounds_that_cannot_be_read_are_an_error_and_the_page_goes_on_without_them(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    store = RoundsStore()
    store.is_unreadable = True
    async with start(store) as server:
        await fail_once_and_succeed(server)
        status, answer = await ask(server)
        paged = await page_of(server)
    assert (status, answer["error"]) == (503, "unavailable")
    assert "etcd does not answer" in answer["message"]
    assert (paged["status"]["state"], paged["status"]["rounds"]) == ("succeeded", [])
    assert any("shown without its rounds" in record.message for record in caplog.records)


def a_reader(store: Store, *records: Record) -> RoundsReader:
    """Return a reader beside a machine that has taken up these records."""
    machine = a_coordinator()
    machine.restore([(0.0, record) for record in records], 1.0)
    return RoundsReader(Driver(machine, store, Tasks(), Counters()), store)


async def test_rounds_are_read_once_for_all_who_ask_and_those_of_few_runs_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rounds_reader, "CACHED_MAX", 2)
    store = RoundsStore()
    openings = [an_opening(f"job-{number}", f"e-{number}") for number in range(3)]
    ends = [replace(an_end(), job=opened.job, run=opened.run) for opened in openings]
    reader = a_reader(store, *openings, *ends)
    for job, asked in (
        ("job-0", 1),
        ("job-0", 1),
        ("job-1", 2),
        ("job-0", 2),
        ("job-2", 3),
        ("job-0", 3),
        ("job-1", 4),
    ):
        assert await reader.find(job) is not None
        assert store.asked == asked, job
    assert await reader.find("job-9") is None


async def test_an_end_that_cannot_be_written_yet_is_not_taken_for_the_whole() -> None:
    store = MemoryStore()
    await store.append(made_at(0.0, *ENDED[:-1]))
    reader = a_reader(store, *ENDED)
    assert (found := await reader.find(JOB)) is not None
    assert found[1].current is not None
    await store.append(made_at(0.0, ENDED[-1]))
    assert (found := await reader.find(JOB)) is not None
    assert [round_.ended for round_ in found[1]] == ["all workers succeeded"]


async def test_thousands_of_nodes_do_not_push_the_rounds_out_of_memory() -> None:
    store = MemoryStore()
    joins = [a_join_of(f"n{number}") for number in range(2_000)]
    await store.append(made_at(0.0, *ENDED[:-1], *joins, ENDED[-1]))
    assert [record.KIND for record in await store.read_rounds(JOB, RUN)] == [
        "RoundRemembered",
        "RoundStarted",
        "RunEnded",
    ]
    assert await store.read_rounds(JOB, "e-2") == []
