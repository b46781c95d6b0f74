"""Records as `GET /metrics` shows them: how long rounds took, and for which reasons they end."""

from typing import Any

import pytest
from prometheus_client import Histogram

from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.transitions.table import ROWS
from coordinatord.core.rounds.values.ranks import Ranks
from coordinatord.core.rounds.values.records import (
    JobForgotten,
    NodeDrained,
    Record,
    RoundEnded,
    RoundFormed,
    RoundStarted,
    RoundStopped,
    RunEnded,
    RunOpened,
    TrainingBegan,
)
from coordinatord.core.rounds.values.time_ledger import Spent
from coordinatord.protocol.messages import HangKind, JobSpec, Outcome, Result
from coordinatord.server.metrics.rounds import OTHER, REASONS, RoundMeter, known_reason
from tests.support.builders import a_failure, a_report
from tests.support.histories import made_at

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
