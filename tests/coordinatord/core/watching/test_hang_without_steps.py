"""When workers that report no steps are looked at: they come to no collective any more."""

import pytest

from coordinatord.core.watching.arrivals import EVERY_S, ask_at
from tests.support.running_job import Job


def test_a_round_without_steps_is_looked_at_when_its_workers_come_to_no_collective_any_more() -> None:
    job = Job(trained_s=0)
    assert job.looks("advance 30s", "arrived", "advance 30s", "arrived 8s") == 0
    assert job.looks("advance 30s", "arrived 38s") == 1
    assert job.looks("seen waits stands", "advance 0.9s") == 0
    assert job.looks("advance 0.1s") == 1
    assert job.stops == []
    job.play("seen waits stands", "stopped n1 n2")
    assert job.stops == ["hung"]
    assert job.run.durable.last_end_reason == "rank 1 on node n2 hung in round 1"


@pytest.mark.parametrize("settings", ["", "restarts=0"])
def test_the_time_of_a_hang_is_no_time_in_which_workers_ran(settings: str) -> None:
    job = Job(settings, trained_s=0)
    job.play("advance 60s", "arrived 38s", "seen waits stands", "advance 1s", "seen waits stands", "fail n1")
    seconds = job.view().ledger.seconds
    assert (seconds.running, seconds.stalled) == (61.0 - 12.0, 12.0), "the others have waited for 12 s"
    assert job.view().ledger.goodput is None


@pytest.mark.parametrize(
    ("ago", "ask_in_s"),
    [
        pytest.param("0s", EVERY_S, id="such a pause is usual"),
        pytest.param("4s", 5.0, id="a pause that is longer than all before it"),
        pytest.param("9s", EVERY_S, id="they are at rest already"),
    ],
)
def test_workers_in_an_unusual_pause_are_asked_again_when_it_is_too_long(ago: str, ask_in_s: float) -> None:
    job = Job(trained_s=0)
    job.play("advance 30s", f"arrived {ago}")
    assert ask_at(job.run, -60.0, job.now) == pytest.approx(job.now + ask_in_s)
    assert ask_at(job.run, -60.0, job.now + 6.0) == job.now + 6.0 + EVERY_S, "once is enough, if no answer came"
    job.play("arrived")
    assert ask_at(job.run, -60.0, job.now) == job.now + EVERY_S


def test_a_round_is_not_asked_sooner_for_a_pause_in_the_last_one() -> None:
    job = Job(trained_s=0)
    job.play("arrived 4s", "fail n1", "stopped n1 n2", "running n1 n2")
    assert ask_at(job.run, -60.0, job.now) == job.now + EVERY_S


def test_a_collective_ends_the_looks_at_a_round_without_steps() -> None:
    job = Job(trained_s=0)
    job.play("arrived 38s", "seen waits stands", "advance 1s")
    look = job.look
    job.play("arrived")
    job.look = look
    job.play("seen waits stands")
    assert (job.stops, job.looks("advance 100s")) == ([], 0)


def test_a_worker_without_steps_that_computes_is_left_alone() -> None:
    job = Job(trained_s=0)
    job.play("arrived 38s", "seen computes waits", "advance 1s", "seen computes waits")
    assert job.stops == []
    assert job.reason.endswith("; waiting for rank 0 on node n1, which computes in evaluate (train.py:50)")
    job.play("arrived")
    assert "waiting" not in job.reason


def test_a_section_of_a_script_that_reports_no_steps_may_take_as_long_as_it_says() -> None:
    job = Job(trained_s=0)
    job.play("section n1 eval limit=600s")
    assert job.looks("arrived 38s", "advance 599s", "section n1 eval limit=600s", "advance 300s") == 0
    assert job.looks("section n1", "advance 1s", "arrived 38s") == 1
    job.play("seen waits stands", "advance 1s", "seen waits stands")
    assert job.stops == ["hung"]


@pytest.mark.parametrize(
    ("settings", "lines"),
    [
        pytest.param("hang=0", (), id="nobody wants an alarm"),
        pytest.param("hang=300", (), id="the user has named another time"),
        pytest.param("launcher=torchrun", (), id="torchrun's workers cannot be asked"),
        pytest.param("", ("announce n1",), id="the first step is still to come"),
        pytest.param("", ("step n1 n2 1",), id="steps tell more"),
    ],
)
def test_who_comes_to_no_collective_is_not_looked_at_for_that(settings: str, lines: tuple[str, ...]) -> None:
    assert Job(settings, trained_s=0).looks(*lines, "arrived 38s", "advance 5s") == 0


@pytest.mark.parametrize(("lines", "wait_s"), [(("step n1 n2 1",), 9), (("announce n1",), 60)])
def test_the_first_step_or_its_announcement_ends_the_looks_at_workers_at_rest(
    lines: tuple[str, ...], wait_s: int
) -> None:
    job = Job(trained_s=0)
    job.play("arrived 38s", "seen waits stands", *lines)
    assert job.looks(f"advance {wait_s}s") == 0


def test_steps_that_were_announced_and_never_came_are_not_waited_for() -> None:
    job = Job(trained_s=0)
    first_step_s = job.coordinator.policy.first_step_s
    job.play("announce n1", f"advance {first_step_s}s", "announce n1")
    assert job.looks("arrived 38s") == 1


def test_a_coordinator_that_starts_anew_knows_of_no_rest() -> None:
    job = Job(trained_s=0)
    job.play("arrived 38s", "seen waits stands", "die 1s")
    assert job.looks("reconnect n1 n2") == 0
    assert job.looks("arrived 68s") == 1
