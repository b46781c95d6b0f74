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
        kept.record_exit(0, 0, pid=7, over_s=0.0)
        for local_rank in range(1, 12):
            kept.record_exit(local_rank, 3, pid=7, over_s=0.0)
        await kept.await_reported()
    assert facts(events)[0] == (0, 0, "")
    assert [event.diagnosis.error for event in events[1:]] == ["error 3"] * 9 + [""] * 2
    assert [event.diagnosis.pid for event in events[:2]] == [7, 9]


async def test_exits_keep_their_order_while_one_is_diagnosed() -> None:
    ready = asyncio.Event()
    async with reporting(giving("error", ready.wait)) as (kept, events):
        kept.record_exit(0, 3, pid=7, over_s=0.0)
        kept.record_exit(1, 0, pid=8, over_s=0.0)
        await asyncio.sleep(0)
        assert events == []
        ready.set()
        await kept.await_reported()
    assert facts(events) == [(0, 3, "error 3"), (1, 0, "")]


@pytest.mark.parametrize(
    ("before", "planned", "after", "diagnosed"),
    [
        pytest.param([], False, [-15, 1, -9], {-15, 1}, id="what SIGTERM ends may have failed too"),
        pytest.param([3], False, [3, -9], {3}, id="what fails right after the first failure is compared"),
        pytest.param([], True, [3], set(), id="in a planned stop nothing is worth it"),
    ],
)
async def test_of_those_that_end_in_a_stop_some_are_diagnosed(
    before: list[int], planned: bool, after: list[int], diagnosed: set[int]
) -> None:
    ends = [*enumerate([*before, *after])]
    async with reporting(giving("error")) as (kept, events):
        for local_rank, exit_code in ends[: len(before)]:
            kept.record_exit(local_rank, exit_code, pid=7, over_s=0.0)
        kept.expect_exits(planned=planned)
        for local_rank, exit_code in ends[len(before) :]:
            kept.record_exit(local_rank, exit_code, pid=7, over_s=0.0)
        await kept.await_reported()
    assert facts(events) == [(rank, code, f"error {code}" if code in diagnosed else "") for rank, code in ends]


def test_where_the_last_output_does_not_come_in_time_the_error_file_is_still_read() -> None:
    assert exit_reporter.DIAGNOSED_WITHIN_S >= 2 * ANSWER_WITHIN_S


async def test_a_diagnosis_that_hangs_keeps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exit_reporter, "DIAGNOSED_WITHIN_S", 0.05)
    async with reporting(giving("error", asyncio.Event().wait)) as (kept, events):
        kept.record_exit(0, 3, pid=7, over_s=0.0)
        await kept.await_reported()
    assert facts(events) == [(0, 3, "")]
    assert events[0].age_s >= 0.05
