"""Exits are reported in their order, the first failures with a diagnosis, however long that takes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from nodeclient.core.events import Diagnosis, Event, WorkerExited
from nodeclient.output.output import ANSWER_WITHIN_S
from nodeclient.workers import exit_reporter
from nodeclient.workers.exit_reporter import Diagnose, ExitReporter


@asynccontextmanager
async def reporting(give: Diagnose) -> AsyncIterator[tuple[ExitReporter, list[WorkerExited]]]:
    """Run the reporter of a round that has begun; yield it, and its events."""
    events: list[WorkerExited] = []

    def submit(event: Event) -> None:
        assert isinstance(event, WorkerExited)
        events.append(event)

    kept = ExitReporter(submit)
    kept.begin(give)
    running = asyncio.ensure_future(kept.run())
    try:
        yield kept, events
    finally:
        running.cancel()
        await asyncio.wait([running])


def giving(error: str, when: Callable[[], Awaitable[object]] | None = None) -> Diagnose:
    async def give(local_rank: int, exit_code: int, pid: int) -> Diagnosis:
        if when is not None:
            await when()
        return Diagnosis(pid=pid + local_rank + 1, error=f"{error} {exit_code}")

    return give


def facts(events: list[WorkerExited]) -> list[tuple[int, int, str]]:
    return [(event.local_rank, event.exit_code, event.diagnosis.error) for event in events]


async def test_only_failures_are_worth_a_diagnosis_and_no_more_of_them_than_are_compared() -> None:
    async with reporting(giving("error")) as (kept, events):
        kept.record_exit(0, 0, pid=7)
        for local_rank in range(1, 12):
            kept.record_exit(local_rank, 3, pid=7)
        await kept.await_reported()
    assert facts(events)[0] == (0, 0, "")
    assert [event.diagnosis.error for event in events[1:]] == ["error 3"] * 9 + [""] * 2
    assert [event.diagnosis.pid for event in events[:2]] == [7, 9]


async def test_exits_keep_their_order_while_one_is_diagnosed() -> None:
    ready = asyncio.Event()
    async with reporting(giving("error", ready.wait)) as (kept, events):
        kept.record_exit(0, 3, pid=7)
        kept.record_exit(1, 0, pid=8)
        await asyncio.sleep(0)
        assert events == []
        ready.set()
        await kept.await_reported()
    assert facts(events) == [(0, 3, "error 3"), (1, 0, "")]


async def test_where_something_went_wrong_elsewhere_what_sigterm_ends_is_diagnosed_since_it_may_have_failed_too() -> (
    None
):
    async with reporting(giving("error")) as (kept, events):
        kept.expect_exits(planned=False)
        kept.record_exit(0, -15, pid=7)
        kept.record_exit(1, 1, pid=8)
        kept.record_exit(2, -9, pid=9)
        await kept.await_reported()
    assert facts(events) == [(0, -15, "error -15"), (1, 1, "error 1"), (2, -9, "")]


async def test_what_fails_by_itself_right_after_the_first_failure_is_diagnosed_to_be_compared() -> None:
    async with reporting(giving("error")) as (kept, events):
        kept.record_exit(0, 3, pid=7)
        kept.expect_exits(planned=False)
        kept.record_exit(1, 3, pid=8)
        kept.record_exit(2, -9, pid=9)
        await kept.await_reported()
    assert facts(events) == [(0, 3, "error 3"), (1, 3, "error 3"), (2, -9, "")]


async def test_in_a_planned_stop_without_a_failure_nothing_is_worth_a_diagnosis() -> None:
    async with reporting(giving("error")) as (kept, events):
        kept.expect_exits(planned=True)
        kept.record_exit(0, 3, pid=7)
        await kept.await_reported()
    assert facts(events) == [(0, 3, "")]


def test_where_the_last_output_does_not_come_in_time_the_error_file_is_still_read() -> None:
    assert exit_reporter.DIAGNOSED_WITHIN_S >= 2 * ANSWER_WITHIN_S


async def test_a_diagnosis_that_hangs_keeps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exit_reporter, "DIAGNOSED_WITHIN_S", 0.05)
    async with reporting(giving("error", asyncio.Event().wait)) as (kept, events):
        kept.record_exit(0, 3, pid=7)
        await kept.await_reported()
    assert facts(events) == [(0, 3, "")]
    assert events[0].age_s >= 0.05
