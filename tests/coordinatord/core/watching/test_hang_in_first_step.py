"""When a round is looked at that has not come to its first step, though earlier rounds of the run had."""

import pytest

from coordinatord.core.rounds.values.records import FirstStepOverdue, Record, TrainingStalled
from tests.support.running_job import Job

AGAIN = ("fail n1", "stopped n1 n2", "running n1 n2", "announce n1 n2")
"""The round fails, and another one of the same nodes begins."""


def overdue_after_s(job: Job, kind: type[Record] = FirstStepOverdue) -> float:
    """Return how long the workers of a round that do no step are given for it."""
    begun, known = job.now, len(job.records(kind))
    while len(job.records(kind)) == known:
        job.play("advance 1s")
    return round(job.now - begun)


def test_a_hang_that_is_back_at_the_first_step_of_the_next_round_is_found_after_a_minute() -> None:
    job = Job()
    job.play(*AGAIN)
    assert job.looks("advance 59s", "arrived 38s") == 0
    assert job.looks("advance 1s", "arrived 39s") == 1
    job.play("seen waits stands", "advance 1s", "seen waits stands")
    assert job.stops == ["worker_failed", "hung"]


def test_a_first_step_may_take_three_times_as_long_as_in_earlier_rounds_of_the_same_nodes() -> None:
    job = Job(trained_s=0)
    job.play("announce n1 n2", "advance 40s", "step n1 n2 1", *AGAIN, "advance 20s", "step n1 n2 2", *AGAIN)
    assert overdue_after_s(job) == 120, "the slowest first step counts"
    assert job.reason == "no step yet, and all workers were started 2 min ago"
    job.play("advance 60s", "step n1 n2 2", *AGAIN)
    assert overdue_after_s(job) == 540, "a start that turned out to be slow is known from then on"


def test_the_second_step_of_such_a_round_has_no_more_time_than_the_first_one_had() -> None:
    job = Job(trained_s=0)
    job.play("announce n1 n2", "advance 40s", "step n1 n2 1")
    assert overdue_after_s(job, TrainingStalled) == 400, "it may compile as much again"
    job.play(*AGAIN, "advance 40s", "step n1 n2 2")
    assert overdue_after_s(job, TrainingStalled) == 120


def test_a_first_step_is_never_given_more_than_one_of_which_nothing_is_known() -> None:
    job = Job(trained_s=0)
    job.play("announce n1 n2", "advance 300s", "step n1 n2 1", *AGAIN)
    assert overdue_after_s(job) == 600


@pytest.mark.parametrize(
    ("settings", "lines"),
    [
        pytest.param("min=2 max=2", ("die 1s", "reconnect n1 n2", *AGAIN), id="the coordinator was started again"),
        pytest.param(
            "min=2 max=2", ("fail n1", "stopped n1", "drop n2", "join n3 min=2 max=2", "advance 5s"), id="new"
        ),
        pytest.param("min=1 max=2", ("fail n1", "stopped n1", "drop n2", "advance 5s"), id="a smaller world"),
    ],
)
def test_a_round_that_differs_from_those_before_has_the_whole_time(settings: str, lines: tuple[str, ...]) -> None:
    job = Job(settings)
    job.play(*lines)
    inside = " ".join(job.run.durable.order)
    job.play(f"running {inside}", f"announce {inside}")
    assert overdue_after_s(job) == pytest.approx(600, abs=1)
