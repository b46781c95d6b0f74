"""`GET /metrics`: what is counted, under which names; it goes when its job goes."""

import math
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiohttp import ClientSession
from msgspec import structs
from prometheus_client import Histogram
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from coordinatord.core.keeping.known import kept_of
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.transitions.table import ROWS
from coordinatord.core.rounds.values.ranks import Ranks
from coordinatord.core.rounds.values.records import (
    JobForgotten,
    NodeDrained,
    NodeJoined,
    Record,
    RoundEnded,
    RoundFormed,
    RoundStarted,
    RoundStopped,
    RunEnded,
    RunOpened,
    TrainingBegan,
)
from coordinatord.core.rounds.values.resume_point import ResumePoint
from coordinatord.core.rounds.values.time_ledger import Activity, Ledger, Spent
from coordinatord.protocol.messages import (
    ColdCause,
    Desired,
    Goal,
    HangKind,
    JobSpec,
    Outcome,
    Phase,
    Refused,
    Result,
    WhyCold,
    WorkerStarts,
)
from coordinatord.runtime import __version__
from coordinatord.runtime.tasks import Tasks
from coordinatord.server import driver
from coordinatord.server.app import Server
from coordinatord.server.counters import Counters, measure_lag
from coordinatord.server.metrics.jobs import figures_of
from coordinatord.server.metrics.rounds import OTHER, REASONS, JobTally, RoundMeter, known_reason
from coordinatord.store.database_store import MemoryStore
from tests.coordinatord.server.conftest import Start
from tests.support.builders import a_failure, a_report, a_run
from tests.support.histories import made_at, records_in
from tests.support.raw_session import IDLE, Peer, connect, join, until
from tests.support.scrapes import Scrape
from tests.support.script import play
from tests.support.stores import SlowStore


async def scraped(server: Server) -> Scrape:
    async with ClientSession() as client, client.get(f"{server.url}/metrics") as answer:
        assert answer.status == 200
        return Scrape(await answer.text())


async def run_round(*peers: Peer, after: int = 0) -> Desired:
    for peer in peers:
        while (desired := await peer.receive_goal(Goal.RUN)).round <= after:
            pass
        await peer.report(Phase.RUNNING, desired)
    return desired


# The exposition


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", "text/plain; version=0.0.4; charset=utf-8"),
        ("text/html", "text/plain; version=0.0.4; charset=utf-8"),
        ("application/openmetrics-text;version=1.0.0,text/plain;q=0.5", "application/openmetrics-text; version=1.0.0"),
    ],
)
async def test_who_asks_gets_the_format_that_it_can_read(start: Start, accept: str, kind: str) -> None:
    async with start() as server, ClientSession() as client:
        async with client.get(f"{server.url}/metrics", headers={"Accept": accept}) as answer:
            assert answer.headers["Content-Type"].startswith(kind)
            text = await answer.text()
        if "openmetrics" in kind:
            assert list(text_string_to_metric_families(text))  # type: ignore[no-untyped-call]
        else:
            assert Scrape(text)("build_info", version=__version__) == 1


async def test_a_coordinator_without_jobs_shows_itself_and_its_process(start: Start) -> None:
    async with start() as server:
        shown = await scraped(server)
        assert shown("sessions") == 0
        assert shown("store_ok") == 1
        assert shown("certificate_expiry_timestamp_seconds") == math.inf
        assert shown("certificate_warning_timestamp_seconds") == math.inf
        assert {shown("jobs", state=state) for state in State} == {0}
        assert ("process_resident_memory_bytes", frozenset()) in shown.samples
        assert not list(shown.named("job_state"))
        assert all(text.endswith(".") for name, text in shown.helps.items() if name.startswith("coordinatord_"))


# Jobs


async def test_a_job_that_waits_shows_how_many_nodes_it_has_and_needs(start: Start) -> None:
    async with start() as server, connect(server.url, join("a", nodes=3)) as a:
        await a.receive_goal(Goal.WAIT)
        shown = await scraped(server)
        assert shown("jobs", state="forming") == 1
        assert shown("nodes", job_id="job", state="ready") == 1
        assert shown("job_nodes_min", job_id="job") == shown("job_nodes_max", job_id="job") == 3
        assert shown("restarts_total", job_id="job") == shown("job_restarts_max", job_id="job") == 0
        assert shown("job_seconds_total", job_id="job", cause="training") == 0
        assert shown("round_formation_seconds_count") == 0


async def test_a_failed_worker_is_a_round_a_restart_and_a_recovery(start: Start) -> None:
    spec = JobSpec(nodes_min=1, nodes_max=1, max_restarts=2)
    async with start() as server, connect(server.url, join("a", spec=spec)) as a:
        first = await run_round(a)
        await a.report(Phase.STOPPED, first, a_failure())
        second = await run_round(a, after=first.round)
        await a.beat()
        await until(lambda: server.driver.machine.jobs["job"].durable.state is State.RUNNING)
        shown = await scraped(server)
        assert second.round == first.round + 1
        assert shown("rounds_total", job_id="job", reason="worker_failed") == 1
        assert sum(shown("rounds_total", job_id="job", reason=reason) for reason in REASONS) == 1
        assert shown("restarts_total", job_id="job") == 1
        assert shown("round_formation_seconds_count") == shown("round_start_seconds_count") == 2
        assert shown("recovery_seconds_count", planned="false") == 1
        assert shown("recovery_seconds_count", planned="true") == 0
        assert shown("heartbeats_total") == 1
        assert shown("store_commit_seconds_count") >= 2
        assert shown("job_state", job_id="job", state="running") == 1


async def test_rounds_that_begin_cold_in_spite_of_preload_are_counted_by_cause(start: Start) -> None:
    async with start() as server, connect(server.url, join("a")) as a:
        desired = await a.receive_goal(Goal.RUN)
        why = WhyCold(ColdCause.GPU, "module x opened CUDA")
        await a.report(Phase.RUNNING, desired, begun=WorkerStarts(0, 0, 1, why_cold=why))
        await until(lambda: server.driver.machine.jobs["job"].durable.state is State.RUNNING)
        shown = await scraped(server)
        assert {cause: shown("cold_rounds_total", job_id="job", cause=cause) for cause in ColdCause} == {
            cause: float(cause is ColdCause.GPU) for cause in ColdCause
        }


async def test_a_job_has_as_many_series_whatever_its_nodes(start: Start) -> None:
    async with start() as server, connect(server.url, join("a", job="small", nodes=2)) as a:
        await a.receive_goal(Goal.WAIT)
        async with AsyncExitStack() as stack:
            for number in range(20):
                node = await stack.enter_async_context(connect(server.url, join(f"n{number}", job="large", nodes=30)))
                await node.receive_goal(Goal.WAIT)
            shown = await scraped(server)
        small, large = ([1 for _, labels in shown.samples if ("job_id", job) in labels] for job in ("small", "large"))
        assert len(small) == len(large) < 70
        assert shown("nodes", job_id="large", state="ready") == 20


async def test_steps_and_where_the_time_went_are_shown(start: Start) -> None:
    async with start() as server, connect(server.url, join("a")) as a:
        desired = await run_round(a)
        running = structs.replace(IDLE, run=desired.run, round=desired.round, phase=Phase.RUNNING)
        await a.send(structs.replace(running, steps=(41,), step_age_s=0.0))
        await until(lambda: server.driver.machine.jobs["job"].step == 41)
        shown = await scraped(server)
        assert shown("job_step", job_id="job") == 41
        spent = [shown("job_seconds_total", job_id="job", cause=activity) for activity in Activity]
        assert sum(spent) > 0
        assert all(seconds is not None for seconds in spent)


async def test_what_ended_is_shown_for_a_while_and_what_is_forgotten_is_gone(start: Start) -> None:
    async with start(jobs_max=1) as server:
        async with connect(server.url, join("a", job="first")) as a:
            desired = await run_round(a)
            await a.report(Phase.SUCCEEDED, desired)
            await a.receive_goal(Goal.EXIT)
        shown = await scraped(server)
        assert shown("job_state", job_id="first", state="succeeded") == 1
        assert shown("rounds_total", job_id="first", reason="all_succeeded") == 1
        assert not list(shown.named("nodes"))
        async with connect(server.url, join("a", job="second", nodes=2)) as a:
            await a.receive_goal(Goal.WAIT)
            shown = await scraped(server)
        jobs = {job for labels in shown.labels.values() for job in labels.get("job_id", ())}
        assert jobs == {"second"}


def test_a_job_that_ended_long_ago_has_no_series() -> None:
    run = a_run()
    run.durable.state = State.FAILED
    run.durable.ledger = Ledger(100.0, Spent(), None)
    assert figures_of(run, JobTally(), 100.0 + 900.0).is_exported
    assert not figures_of(run, JobTally(), 100.0 + 900.1).is_exported


def test_a_disk_that_fails_is_seen_where_nodes_write_to_one() -> None:
    run = a_run()
    assert figures_of(run, JobTally(), 1.0).figures["job_disk_failing"] is None
    kept_of(run).disk.every_s = 600.0
    assert figures_of(run, JobTally(), 1.0).figures["job_disk_failing"] is False
    kept_of(run).disk.fail("node a: no space left", 1.0)
    assert figures_of(run, JobTally(), 1.0).figures["job_disk_failing"] is True


def test_nodes_that_save_slowly_are_counted() -> None:
    stage = play("join n1 n2 n3 min=3 max=3 keeps=yes", "running n1 n2 n3", "step n1 n2 n3 1")
    assert figures_of(stage.run, JobTally(), 1.0).figures["job_pageable_nodes"] == 0
    stage.play("keep n2 pageable=refused", "keep n3 pageable=refused", "step n2 n3 2")
    assert figures_of(stage.run, JobTally(), 1.0).figures["job_pageable_nodes"] == 2


def test_steps_that_are_done_again_are_counted_where_a_round_resumed() -> None:
    run = a_run()
    assert figures_of(run, JobTally(), 1.0).figures["job_redone_steps"] is None
    run.durable.resume = ResumePoint(1, 40, 2, 1, redone=3)
    assert figures_of(run, JobTally(), 1.0).figures["job_redone_steps"] == 3


# Counters


def seconds_of(run: Run, tally: JobTally, now: float) -> Sequence[float]:
    """Return what a scrape at this time shows of each activity."""
    figures_of(run, tally, now)
    return list(tally.shown.values())


def test_counters_add_up_to_the_time_that_passed_and_never_fall_whatever_turns_out() -> None:
    run, tally = a_run(), JobTally()
    run.durable.ledger = Ledger(0.0, Spent(), Activity.RUNNING)
    shown = [0.0] * len(Activity)
    for second in range(1, 120):
        if second == 30:
            run.durable.ledger = Ledger(29.5, Spent(starting=29.5), Activity.TRAINING)  # its first step is heard of
        if second == 60:
            run.durable.ledger = Ledger(60.0, Spent(starting=29.5, training=20.5, detecting=10.0), Activity.STOPPING)
        if second == 90:  # it trains again, and more of that was counted than there was
            spent = Spent(starting=29.5, training=20.5, detecting=10.0, stopping=30.0)
            run.durable.ledger = Ledger(90.0, spent, Activity.TRAINING)
        seconds = seconds_of(run, tally, float(second))
        assert sum(seconds) == pytest.approx(second)
        assert all(now >= before for now, before in zip(seconds, shown, strict=True))
        shown = list(seconds)
    truth = {Activity.STARTING: 29.5, Activity.TRAINING: 49.5, Activity.DETECTING: 10.0, Activity.STOPPING: 30.0}
    excess = {activity: shown[index] - truth.get(activity, 0.0) for index, activity in enumerate(Activity)}
    assert excess[Activity.RUNNING] == pytest.approx(29.0), "what was counted stays counted"


def test_the_next_run_of_a_job_counts_its_seconds_anew() -> None:
    tally = JobTally()
    run = a_run()
    run.durable.ledger = Ledger(50.0, Spent(training=50.0), None)
    assert sum(seconds_of(run, tally, 60.0)) == 50.0
    run.id = "e-2"
    run.durable.ledger = Ledger(60.0, Spent(), Activity.WAITING)
    assert sum(seconds_of(run, tally, 61.0)) == 1.0


async def test_the_end_of_a_round_of_an_earlier_life_is_counted(start: Start) -> None:
    store = MemoryStore()
    async with start(store) as first, connect(first.url, join("a")) as a:
        desired = await run_round(a)
        await until(lambda: first.driver.machine.jobs["job"].durable.state is State.RUNNING)
        await first.driver.written()
    kinds = {type(record) for record in await records_in(store)}
    assert kinds >= {RunOpened, NodeJoined, RoundFormed, RoundStarted}
    async with start(store) as second, connect(second.url, join("a")) as a:
        await a.report(Phase.SUCCEEDED, desired)
        await a.receive_goal(Goal.EXIT)
        shown = await scraped(second)
        assert shown("rounds_total", job_id="job", reason="all_succeeded") == 1
        assert shown("round_formation_seconds_count") == 0


# Series of no job


async def test_what_is_refused_is_counted_by_its_code(start: Start) -> None:
    async with start() as server:
        async with connect(server.url) as stranger:
            await stranger.socket.send_str("no join")
            await stranger.receive(Refused)
        async with connect(server.url, join("a", nodes=2)) as a, connect(server.url, join("b", nodes=3)) as b:
            await b.receive(Refused)
            await a.receive_goal(Goal.WAIT)
            await a.socket.send_bytes(b"nonsense")
            await a.receive(Refused)
        shown = await scraped(server)
        assert shown("refused_total", code="malformed") == 2
        assert shown("refused_total", code="spec_differs") == 1
        assert shown("refused_total", code="version") == 0


async def test_a_store_that_fails_is_shown_while_it_does(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "RETRY_S", 0.01)
    store = SlowStore()
    store.broken = True
    store.allowed.release()
    async with start(store) as server, connect(server.url, join("a")):
        await until(lambda: server.driver.machine.store_error is not None)
        shown = await scraped(server)
        assert shown("store_ok") == 0
        assert shown("store_failures_total") >= 1


async def test_how_late_the_loop_is_is_looked_at_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinatord.server.counters.MEASURE_EVERY_S", 0.001)
    counters, tasks = Counters(), Tasks()

    def looks() -> float:
        [lag] = counters.lag.collect()
        return next(sample.value for sample in lag.samples if sample.name.endswith("_count"))

    tasks.spawn(measure_lag(counters), name="lag")
    await until(lambda: looks() >= 3)
    await tasks.cancel()


# Durations

RANKS = (Ranks("a", 0, 0, 1, 0, 1),)


def opened() -> RunOpened:
    """Return the record of the run that the records below belong to."""
    return RunOpened("job", "e-1", "r", "a", JobSpec(nodes_min=1, nodes_max=1, max_restarts=3))


def formed(number: int, **spent: float) -> RoundFormed:
    """Return the record of a round that is formed, when the run had spent so much."""
    return RoundFormed("job", "e-1", "r", number, RANKS, "127.0.0.1", 1, Spent(**spent))


def started(number: int, *, steps_awaited: bool, **spent: float) -> RoundStarted:
    return RoundStarted("job", "e-1", "r", number, steps_awaited, Spent(**spent))


def stopped(number: int, *, planned: bool, **spent: float) -> RoundStopped:
    return RoundStopped("job", "e-1", "lost node b", number, planned, None, Spent(**spent), "node_lost")


def ended(number: int, **spent: float) -> RoundEnded:
    return RoundEnded("job", "e-1", "r", number, False, 0, None, Spent(**spent), 0)


def metered(*records: Record) -> RoundMeter:
    meter = RoundMeter([])
    meter.on_records(made_at(0.0, *records))
    return meter


def samples_of(histogram: Histogram) -> dict[str, float]:
    """Return how often something was measured, and the sum of that, by whether it was planned."""
    [family] = histogram.collect()
    measured = (sample for sample in family.samples if not sample.name.endswith("_bucket"))
    return {sample.name.rpartition("_")[2] + sample.labels.get("planned", ""): sample.value for sample in measured}


def test_what_took_how_long_is_what_the_ledger_says() -> None:
    before = {"waiting": 40.0, "rendezvous": 2.0}
    first = {"waiting": 40.0, "starting": 3.0, "training": 100.0, "detecting": 5.0}
    again = {"waiting": 40.0, "training": 100.0, "detecting": 5.0, "rendezvous": 3.0, "stopping": 0.5}
    meter = metered(
        opened(),
        formed(1, **before),
        started(1, steps_awaited=False, **before, starting=3.0),
        stopped(1, planned=False, **first, rendezvous=2.0),
        ended(1, **first, rendezvous=2.0, stopping=0.5),
        formed(2, **first, rendezvous=3.0, stopping=0.5),
        started(2, steps_awaited=True, **again, starting=4.0),
    )
    assert samples_of(meter.recovery)["countfalse"] == 0, (
        "its workers are there, but train only from their first step on"
    )
    meter.on_records(made_at(0.0, TrainingBegan("job", "e-1", "r", 2, Spent(**again, starting=5.0))))
    assert samples_of(meter.formation) == {"count": 2, "sum": 3.0}, "the wait for nodes is no part of it"
    assert samples_of(meter.start) == {"count": 2, "sum": 5.0}
    assert samples_of(meter.recovery) == {"countfalse": 1, "sumfalse": 8.5, "counttrue": 0, "sumtrue": 0}


def test_what_breaks_again_before_it_has_recovered_is_one_recovery() -> None:
    meter = metered(
        opened(),
        formed(1),
        started(1, steps_awaited=False),
        stopped(1, planned=True, training=9.0),
        ended(1, training=9.0, stopping=30.0),
        formed(2, training=9.0, stopping=30.0),
        stopped(2, planned=False, training=9.0, stopping=30.0, starting=1.0),
        ended(2, training=9.0, stopping=31.0, starting=1.0),
        formed(3, training=9.0, stopping=31.0, starting=1.0),
        started(3, steps_awaited=False, training=9.0, stopping=31.0, starting=2.0),
    )
    assert samples_of(meter.recovery) == {"countfalse": 0, "sumfalse": 0, "counttrue": 1, "sumtrue": 33.0}
    assert meter.tallies["job"].rounds == {"node_lost": 2}


def test_steps_that_show_only_later_are_no_second_start() -> None:
    start = started(1, steps_awaited=False, starting=1.0)
    meter = metered(opened(), formed(1), start, TrainingBegan("job", "e-1", "r", 1, Spent(starting=4.0)))
    assert samples_of(meter.start)["count"] == 1


def test_nothing_is_kept_of_a_job_that_is_forgotten() -> None:
    meter = metered(opened(), JobForgotten("job", "e-1", "r"), NodeDrained("", "", "n drained by ann", "n"))
    assert meter.tallies == {}


# Reasons


AT_WORK = {State.STARTING, State.RUNNING}
ENDINGS = [row for row in ROWS if row.source in AT_WORK and row.target not in AT_WORK]


def test_each_row_that_ends_a_round_has_its_condition_as_the_reason_and_no_other_row() -> None:
    names = {row.when.__name__ for row in ENDINGS} - {"success_unwritten"}
    assert set(REASONS) == {*names, OTHER}
    assert all(known_reason(name) == name for name in names)


def test_what_another_version_has_recorded_has_a_reason_as_well() -> None:
    assert known_reason("") == known_reason("the moon was full") == OTHER


@pytest.mark.parametrize(("reason", "found"), [("hung", {"hang": HangKind.STUCK}), ("diverged", {"diverged": True})])
def test_a_round_that_hung_or_diverged_counts_as_such(reason: str, found: dict[str, Any]) -> None:
    over = RoundEnded("job", "e-1", "r", 1, True, 1, a_report(failure=a_failure(**found)), Spent(), 0)
    meter = metered(opened(), formed(1), stopped(1, planned=False), over)
    assert meter.tallies["job"].rounds == {reason: 1}


def test_a_round_whose_last_step_was_written_when_the_job_had_succeeded_counts_as_a_success() -> None:
    waits = RoundStopped("job", "e-1", "r", 1, True, None, Spent(), "success_unwritten")
    over = RunEnded("job", "e-1", "r", Outcome(Result.SUCCEEDED, 0, "r"), None, Spent(), "all_succeeded")
    assert metered(opened(), formed(1), waits, over).tallies["job"].rounds == {"all_succeeded": 1}
