"""When it is said that a hang would not be noticed, since no worker shows where it stands."""

import pytest

from coordinatord.core.rounds.events import Compared, NodeArrivals
from coordinatord.core.rounds.values.records import WorkersUnseen
from coordinatord.core.watching.run_watch import UNSEEN
from coordinatord.protocol.arrival_messages import WorkerArrivals
from tests.support.running_job import Job


def said(job: Job) -> tuple[str, list[str]]:
    """Return what the status says of it, and what was recorded."""
    return job.view().unseen, [record.reason for record in job.records(WorkersUnseen)]


def arrivals(node: str, job: Job, workers: tuple[WorkerArrivals, ...]) -> NodeArrivals:
    """Return the answer of a node with these workers."""
    return NodeArrivals(node, job.now, 0.0, job.now, workers)


def test_that_no_worker_shows_where_it_stands_is_said_after_three_minutes_and_recorded_once() -> None:
    job = Job(trained_s=0)
    job.play("advance 179s", "unseen n1 n2")
    assert said(job) == ("", []), "scripts may still import and load what they need"
    job.play("advance 1s", "unseen n1 n2")
    assert said(job) == (UNSEEN, [UNSEEN])
    job.play("advance 1s")
    assert job.desired("n1").remark == job.desired("n2").remark == UNSEEN
    job.play("fail n1", "stopped n1 n2", "running n1 n2")
    assert said(job) == ("", [UNSEEN]), "another round may have another script"
    job.play("advance 180s", "unseen n1 n2", "advance 1s")
    assert said(job) == (UNSEEN, [UNSEEN])
    assert job.desired("n1").remark == UNSEEN


def test_only_a_change_of_it_is_news() -> None:
    job = Job(trained_s=0)
    job.play("advance 180s")
    unseen, seen = ((), (WorkerArrivals(0, ()),))
    news = [
        job.run.watching.record_answers(
            Compared(job.run.id, 1, (arrivals("n1", job, of), arrivals("n2", job, ()))), job.now
        )
        for of in (unseen, unseen, seen, seen)
    ]
    assert news == [True, False, True, False]


def test_it_is_recorded_once_also_by_a_coordinator_that_is_started_again() -> None:
    job = Job(trained_s=0)
    job.play("advance 180s", "unseen n1 n2", "die 1s", "reconnect n1 n2 phase=running", "advance 1s", "unseen n1 n2")
    assert said(job) == (UNSEEN, [UNSEEN])


@pytest.mark.parametrize("line", ["arrived", "announce n1", "step n1 n2 1"])
def test_it_is_no_longer_said_once_a_worker_shows_itself(line: str) -> None:
    job = Job(trained_s=0)
    job.play("advance 180s", "unseen n1 n2", "advance 1s", line, "advance 1s")
    assert job.view().unseen == ""
    assert job.desired("n1").remark == ""


@pytest.mark.parametrize("line", ["succeed n1 n2", "fail n1", "ask stop default"])
def test_it_is_no_longer_said_once_the_round_is_over(line: str) -> None:
    job = Job("restarts=0", trained_s=0)
    job.play("advance 180s", "unseen n1 n2", line)
    assert job.view().unseen == ""


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        pytest.param("", "unseen n1", id="one node has not answered"),
        pytest.param("hang=0", "unseen n1 n2", id="nobody wants an alarm"),
    ],
)
def test_it_is_not_said_where_it_is_not_known_or_not_wanted(settings: str, line: str) -> None:
    job = Job(settings, trained_s=0)
    job.play("advance 180s", line)
    assert said(job) == ("", [])
