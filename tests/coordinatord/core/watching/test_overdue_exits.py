"""When it is said that some workers of a round do not end, though others have ended without an error."""

import pytest

from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.values.records import ExitOverdue
from coordinatord.protocol.messages import Ended
from tests.support.running_job import Job

OVERDUE = "rank 1 on node n2 has not ended, though the other one ended without an error 10 s ago: see nodeclient stacks"


def told(job: Job) -> list[str]:
    """Return what was recorded of it."""
    return [record.reason for record in job.records(ExitOverdue)]


def test_a_worker_that_does_not_end_after_the_others_is_named_by_status_event_and_all_nodes() -> None:
    job = Job(trained_s=0)
    job.play("succeed n1", "advance 9s")
    assert told(job) == []
    assert job.reason.startswith("all workers are started")
    job.play("advance 1s")
    assert told(job) == [OVERDUE]
    assert job.reason == OVERDUE
    job.play("advance 1s")
    assert job.desired("n1").remark == job.desired("n2").remark == OVERDUE
    job.play("advance 109s")
    assert job.reason == OVERDUE.replace("10 s", "2 min")
    assert told(job) == [OVERDUE]
    assert job.desired("n2").remark == OVERDUE, "a notice that changed would be written again and again"
    assert job.state() is State.RUNNING
    job.play("succeed n2")
    assert job.state() is State.SUCCEEDED


def test_workers_of_one_node_are_told_apart_by_their_processes() -> None:
    job = Job("workers=3", trained_s=0)
    job.report("n1", pids=(11, 12, 13))
    job.report("n2", pids=(21, 22, 23))
    job.report("n1", beat=True, pids=(0, 12, 0))
    job.play("advance 10s")
    assert job.reason == (
        "ranks 1, 3, 4, 5 on nodes n1, n2 have not ended, though the 2 others ended without an error 10 s ago: "
        "see nodeclient stacks"
    )


def test_a_node_that_reports_no_processes_names_those_that_have_ended() -> None:
    job = Job("workers=2", trained_s=0)
    job.report("n1", ended=(Ended(1, 0.0),))
    job.play("advance 10s")
    assert job.reason.startswith("ranks 0, 2, 3 on nodes n1, n2 have not ended, though the other one ended")


@pytest.mark.parametrize(
    "line", ["step n2 7", "section n2 eval limit=5s", "silence n1 n2"], ids=["a step", "a section", "nothing is heard"]
)
def test_it_is_not_said_of_workers_that_get_on_or_are_not_heard(line: str) -> None:
    job = Job()
    job.play("succeed n1", "advance 1s", line, "advance 9s")
    assert told(job) == []


def test_where_steps_take_long_it_is_said_only_once_training_would_count_as_stalled() -> None:
    job = Job(trained_s=0)
    job.play("step n1 n2 1", "advance 15s", "step n1 n2 2", "advance 15s", "step n1 n2 3", "succeed n1")
    job.play("advance 15s", "step n2 4", "advance 149s")
    assert told(job) == []
    job.play("advance 1s")
    assert told(job) == [OVERDUE.replace("10 s", "2 min")]


def test_a_coordinator_that_is_started_again_says_it_once_and_knows_who_had_ended() -> None:
    job = Job(trained_s=0)
    job.play("succeed n1", "advance 10s", "die 1s", "reconnect n2 phase=running", "advance 20s")
    assert told(job) == [OVERDUE]
    assert job.reason == OVERDUE.replace("10 s", "20 s"), "it does not know when the other one ended"
    assert job.desired("n2").remark == OVERDUE


def test_the_next_round_begins_without_it() -> None:
    job = Job("restarts=1", trained_s=0)
    job.play("succeed n1", "advance 10s", "fail n2", "stopped n2", "advance 1s", "running n1 n2")
    job.play("advance 60s")
    assert len(told(job)) == 1
    assert job.reason.startswith("all workers are started")


def test_a_stalled_round_is_looked_at_too_and_only_a_worker_that_others_wait_for_is_added() -> None:
    job = Job()
    job.play("succeed n1", "advance 10s", "seen ended stands")
    assert job.reason == OVERDUE
    job.play("advance 10s", "advance 1s", "seen ended debugged")
    assert job.reason == f"{OVERDUE.replace('10 s', '21 s')}; a debugger holds rank 1 on node n2"
