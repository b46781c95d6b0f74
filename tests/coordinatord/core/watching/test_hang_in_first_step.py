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


def hung_after_s(job: Job, doing: str = "stands", for_s: int = 1_300) -> int | None:
    """Return when a round was stopped in which n1 waits and n2 does this; None if it never was within the time."""
    stops = len(job.stops)
    for second in range(1, for_s + 1):
        job.play("advance 1s")
        if second % 30 == 0:
            job.play(f"arrived {second - 1}s")
        if job.look is not None:
            job.play(f"seen waits {doing}")
        if len(job.stops) > stops:
            assert job.stops[-1] == "hung"
            return second
    return None


def start_again(job: Job) -> None:
    """End the round that is being stopped, and start the workers of the next one."""
    job.play("stopped n1 n2")
    while not job.state().at_work:
        job.play("advance 1s")
    job.play("running n1 n2", "announce n1 n2")


def after_hang(first_s: int = 1, settings: str = "") -> Job:
    """Return a job whose first round came to a step after so many seconds, and then hung; the second one begins."""
    job = Job(settings, trained_s=0)
    job.play("announce n1 n2", f"advance {first_s}s", "step n1 n2 1", "advance 1s", "step n1 n2 2")
    assert hung_after_s(job)
    start_again(job)
    return job


def test_a_hang_that_is_back_at_the_first_step_of_the_next_round_is_found_after_a_minute() -> None:
    job = after_hang()
    assert job.looks("advance 59s", "arrived 58s") == 0
    assert job.looks("advance 1s", "arrived 59s") == 1
    job.play("seen waits stands", "advance 1s", "seen waits stands")
    assert job.stops == ["hung", "hung"]


def test_a_first_step_after_a_hang_may_take_three_times_as_long_as_in_earlier_rounds_of_the_same_nodes() -> None:
    job = Job(trained_s=0)
    job.play("announce n1 n2", "advance 40s", "step n1 n2 1", *AGAIN, "advance 20s", "step n1 n2 2")
    assert hung_after_s(job)
    start_again(job)
    assert overdue_after_s(job) == 120, "the slowest first step counts"
    assert job.reason == "no step yet, and all workers were started 2 min ago"


def test_a_round_that_ends_without_a_step_counts_as_a_first_step_of_that_length() -> None:
    job = after_hang(settings="restarts=9")
    ended_after_s = [hung_after_s(job)]
    for _ in range(2):
        start_again(job)
        ended_after_s.append(hung_after_s(job))
    assert ended_after_s == [pytest.approx(most, rel=0.2) for most in (60, 180, 600)]


@pytest.mark.parametrize("doing", ["saves", "runs", "stands"])
def test_a_job_that_loads_slowly_does_not_fail_for_good(doing: str) -> None:
    """It hung once. From then on, each start takes 15 minutes, or 2 if its worker stands."""
    job = after_hang(settings="restarts=100 futile=3")
    while hung_after_s(job, doing, 120 if doing == "stands" else 900) is not None:
        start_again(job)
    assert len(job.stops) <= 2


@pytest.mark.parametrize("lines", [AGAIN, ("ask restart default", *AGAIN[1:])], ids=["failed", "restarted"])
def test_a_round_that_follows_no_hang_has_the_whole_time(lines: tuple[str, ...]) -> None:
    job = Job()
    job.play(*lines)
    assert overdue_after_s(job) == 600


@pytest.mark.parametrize("settings", ["restarts=1", "restarts=9 futile=1"])
def test_a_hang_in_the_last_round_is_left_to_torch(settings: str) -> None:
    job = after_hang(settings=settings)
    assert hung_after_s(job) is None
    assert "a failed round would now end the job, so only torch's own timeout ends this" in job.reason


def test_the_second_step_of_such_a_round_has_no_more_time_than_the_first_one_had() -> None:
    job = Job(trained_s=0)
    job.play("announce n1 n2", "advance 40s", "step n1 n2 1")
    assert overdue_after_s(job, TrainingStalled) == 400, "it may compile as much again"
    job = after_hang(40)
    job.play("advance 40s", "step n1 n2 2")
    assert overdue_after_s(job, TrainingStalled) == 120


def test_the_second_step_has_three_times_as_long_as_the_first_one_of_its_own_round() -> None:
    job = after_hang()
    job.play("advance 50s", "step n1 n2 1")
    assert overdue_after_s(job, TrainingStalled) == 150


@pytest.mark.parametrize(
    "lines",
    [("step n1 79 twice=yes",), ("step n1 1", "advance 0.4s", "step n1 20")],
    ids=["one report", "half a second"],
)
def test_a_round_that_has_done_two_steps_may_stand_as_long_as_any_other(lines: tuple[str, ...]) -> None:
    job = Job(trained_s=0)
    job.play("announce n1 n2", "advance 40s", *lines)
    assert overdue_after_s(job, TrainingStalled) == 10


def test_two_nodes_that_report_one_step_each_have_not_done_two() -> None:
    job = Job(trained_s=0)
    job.play("announce n1 n2", "advance 40s", "step n1 1", "step n2 1")
    assert overdue_after_s(job, TrainingStalled) == 400


def test_a_first_step_is_overdue_only_after_a_section() -> None:
    job = after_hang()
    job.play("section n1 load limit=1800s")
    assert overdue_after_s(job) == 1800
    assert job.reason == "no step yet, and all workers were started 30 min ago"
    job = after_hang()
    job.play("section n1 load limit=1800s", "advance 900s", "section n1")
    assert overdue_after_s(job) == 60


def test_a_first_step_is_never_given_more_than_one_of_which_nothing_is_known() -> None:
    assert overdue_after_s(after_hang(300)) == 600


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
