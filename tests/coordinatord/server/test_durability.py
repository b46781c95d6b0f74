"""Persist, then send: nobody receives what a crash could forget."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, tzinfo

import pytest
from msgspec import structs

from coordinatord.commands.delayed_end import end_after_ending_runs
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.values.records import AGE_MAX, RoundFormed
from coordinatord.protocol.messages import Degraded, Desired, Goal, Phase, RefusalCode, Refused
from coordinatord.runtime.logs import LineFormatter
from coordinatord.runtime.systemd import SystemdNotifier
from coordinatord.runtime.tasks import Tasks
from coordinatord.server import driver
from coordinatord.store.database_store import MemoryStore
from coordinatord.store.interface import UnreadableStoreError
from tests.coordinatord.server.conftest import Start
from tests.support.histories import a_loss_of, an_opening, made_at, records_in
from tests.support.raw_session import IDLE, connect, get, join, until
from tests.support.stores import SlowStore

DECADES_S = 50 * 365 * 86_400.0


async def test_no_node_hears_of_a_round_before_it_is_durable(start: Start) -> None:
    store = SlowStore()
    async with start(store) as server, connect(server.url, join("a")) as a:
        [*_, formed] = await store.asked.get()
        assert isinstance(formed, RoundFormed)
        # A session that needs no record is served meanwhile, so messages travel: only `a` receives nothing.
        async with connect(server.url) as other:
            await other.socket.send_str("no join")
            await other.receive(Refused)
        silent = asyncio.ensure_future(a.receive(Desired))
        await asyncio.sleep(0)
        assert not silent.done()
        store.allowed.release()
        assert (await silent).goal is Goal.RUN
        assert formed in await records_in(store)


async def test_while_the_store_fails_nodes_are_held_newcomers_turned_away_and_nothing_is_forgotten(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "RETRY_S", 0.01)
    store = SlowStore()
    store.broken = True
    async with start(store) as server, connect(server.url, join("a")) as a:
        first = await store.asked.get()
        store.allowed.release()
        assert await store.asked.get() == first, "the same records are tried again"
        await a.beat()
        assert (await a.receive(Degraded)).reason == "the disk is full"
        async with connect(server.url, join("b")) as b:
            refused = await b.receive(Refused)
        assert (refused.code, refused.retry) == (RefusalCode.DEGRADED, True)
        status, _, health = await get(f"{server.url}/healthz")
        assert (status, health["status"], health["reason"]) == (503, "cannot record", "the disk is full")
        _, _, jobs = await get(f"{server.url}/v1/jobs")
        assert jobs["jobs"][0]["reason"].startswith("nothing can be decided, the disk is full; ")

        store.broken = False
        store.allowed.release()
        assert (await a.receive_goal(Goal.RUN)).round == 1
        assert await records_in(store) == list(first)
        status, _, health = await get(f"{server.url}/healthz")
        assert (status, health["status"]) == (200, "ok")


async def test_a_daemon_that_awaits_nodes_says_that_nothing_can_be_recorded(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    store = SlowStore()
    store.allowed = asyncio.Semaphore(100)
    async with start(store) as server, connect(server.url, join("a")) as a, Tasks() as tasks:
        desired = await a.start_workers()
        await until(lambda: server.driver.machine.jobs["job"].durable.state is State.RUNNING)
        store.broken = True
        await a.send(structs.replace(IDLE, run=desired.run, round=1, phase=Phase.RUNNING, leaving=True))
        await until(lambda: server.driver.machine.store_error is not None)
        ended = asyncio.get_running_loop().create_future()
        tasks.spawn(end_after_ending_runs(server.driver, SystemdNotifier({}, 0), ended), name="end")
        said = "; nothing can be recorded meanwhile: the disk is full"
        await until(lambda: any(message.endswith(said) for message in caplog.messages))
        await tasks.cancel()


async def test_a_silence_of_unknown_length_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    loss, records = a_loss_of("n1"), driver.DurableRecords()
    records.put(made_at(1.0, loss, structs.replace(loss, silent_s=AGE_MAX)))
    records.flush()
    assert [record.__dict__["fields"].get("silent_s") for record in caplog.records] == [loss.silent_s, None]


async def test_a_disk_that_does_not_answer_is_trouble_as_well(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "WRITE_WITHIN_S", 0.01)
    store = SlowStore()
    async with start(store) as server, connect(server.url, join("a")) as a:
        await store.asked.get()
        await until(lambda: server.driver.machine.store_error is not None)
        await a.beat()
        assert (await a.receive(Degraded)).reason == "a write to memory takes longer than 0.01 s"
        store.allowed.release()
        assert (await a.receive_goal(Goal.RUN)).round == 1


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/jobs/job"])
async def test_what_people_are_shown_is_durable_as_well(start: Start, path: str) -> None:
    store = SlowStore()
    async with start(store) as server, connect(server.url, join("a")):
        await store.asked.get()
        shown = asyncio.ensure_future(get(f"{server.url}{path}"))
        for _ in range(10):  # meanwhile others are served, who asked later
            assert (await get(f"{server.url}/healthz"))[0] == 200
        assert not shown.done()
        store.allowed.release()
        _, _, answer = await shown
        assert answer.get("jobs", [answer])[0]["round"] == 1


async def test_readers_do_not_wait_for_later_decisions(start: Start) -> None:
    """More may be decided during each write, for as long as the store is slow."""
    store = SlowStore()
    async with start(store) as server, connect(server.url, join("a", job="one")):
        await store.asked.get()
        written = asyncio.ensure_future(server.driver.written())
        await asyncio.sleep(0)
        async with connect(server.url, join("b", job="two")):
            await until(lambda: "two" in server.driver.machine.jobs)
            assert not written.done()
            store.allowed.release()
            await written
            assert len(await store.asked.get()) > 0, "which is not durable"
            store.allowed.release()


async def test_a_store_that_is_slow_and_fails_has_one_reason(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(driver, "WRITE_WITHIN_S", 0.01)
    monkeypatch.setattr(driver, "RETRY_S", 0.01)
    store = SlowStore()
    store.broken = True
    async with start(store) as server, connect(server.url, join("a")):
        for _ in range(3):
            await store.asked.get()
            await until(lambda: "wait for the store" not in {task.get_name() for task in asyncio.all_tasks()})
            store.allowed.release()
        await store.asked.get()
    said = [record for record in caplog.records if record.__dict__.get("event") == "recording_stopped"]
    reasons = "a write to memory takes longer than 0.01 s", "the disk is full"
    for record, reason in zip(said, reasons, strict=True):
        assert LineFormatter("coordinatord").format(record).count(reason) == 1


async def test_records_have_the_time_of_a_clock_that_is_set_after_the_start(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host may boot in 1970 and get the time later."""
    store = MemoryStore()
    async with start(store) as server:
        async with connect(server.url, join("a", nodes=3)) as a:
            await a.receive_goal(Goal.WAIT)
        begun = (await store.load())[-1].at

        class Later(datetime):
            @classmethod
            def now(cls, tz: tzinfo | None = None) -> Later:
                return cls.fromtimestamp(begun + DECADES_S, tz)

        monkeypatch.setattr(driver, "datetime", Later)
        async with connect(server.url, join("b", nodes=3)) as b:
            await b.receive_goal(Goal.WAIT)
        assert (await store.load())[-1].at == pytest.approx(begun + DECADES_S, abs=60.0)


async def test_a_history_that_contradicts_itself_is_an_error_that_says_so(start: Start) -> None:
    store = MemoryStore()
    await store.append(made_at(1_000_000.0, an_opening(), a_loss_of("n1")))
    with pytest.raises(UnreadableStoreError, match=r"the records contradict each other: .*n1"):
        async with start(store):
            raise AssertionError("it serves")
