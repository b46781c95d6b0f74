"""A node's report of a failure, and its display of the root cause that it receives."""

from __future__ import annotations

import pytest

from coordinatord.protocol.codec import decode, encode
from coordinatord.protocol.fields import RANKS_MAX
from coordinatord.protocol.messages import Follower, Goal, Observed, Outcome, Phase, Result
from coordinatord.protocol.worker_ends import Ended
from nodeclient.core.effects import Exit, Level, Notice, SendObserved, Show
from nodeclient.core.events import WorkerExited
from tests.support.bench import Bench, kinds
from tests.support.builders import a_diagnosis, a_report, an_assignment


def test_a_failure_carries_what_is_known_of_it_within_the_bounds_of_the_protocol() -> None:
    bench = Bench().running()
    lines = tuple(f"line {number}\x1b" for number in range(100))
    diagnosis = a_diagnosis(pid=7, message="m" * 1000, error="ValueError: " + "e" * 1000, last_lines=lines)
    bench.now = 10.0
    bench.submit(WorkerExited(0, 1, diagnosis, age_s=0.25))
    failure = bench.observed.failure
    assert failure is not None
    assert (failure.pid, len(failure.message), len(failure.error), failure.age_s) == (7, 512, 512, 0.25)
    assert failure.last_lines[-1] == "line 99 "
    assert len(failure.last_lines) == 40


def test_a_failure_is_reported_though_the_coordinator_gave_a_rank_beyond_all_limits() -> None:
    bench = Bench().running(assignment=an_assignment(first_rank=RANKS_MAX, world_size=RANKS_MAX))
    bench.exited(1, 3)
    assert decode(encode(bench.observed), Observed).failure == bench.observed.failure
    assert bench.observed.failure is not None
    assert bench.observed.failure.rank == RANKS_MAX


def test_a_failure_from_before_the_stop_counts_though_it_is_reported_after_it() -> None:
    bench = Bench().running()
    bench.now = 10.0
    bench.receive(Goal.STOP)
    bench.now = 10.2
    bench.alive.clear()
    bench.submit(WorkerExited(0, 5, a_diagnosis(error="ValueError: no"), age_s=0.3))
    failure = bench.observed.failure
    assert failure is not None
    assert (failure.exit_code, failure.error, round(failure.age_s, 3)) == (5, "ValueError: no", 0.3)
    assert bench.observed.phase is Phase.STOPPING
    bench.submit(WorkerExited(1, 6, a_diagnosis(), age_s=0.25))
    assert bench.observed.failure is not None
    assert bench.observed.failure.followers == (Follower(1, 6),)


def test_workers_that_ended_with_0_unasked_are_reported_and_no_message_is_sent_for_that_alone() -> None:
    bench = Bench().running(assignment=an_assignment(first_rank=4, world_size=8))
    assert SendObserved not in kinds(bench.exited(1, 0))
    bench.now += 0.5
    bench.exited(0, 3)
    assert bench.observed.ended == (Ended(5, 0.5),)
    assert bench.observed.failure is not None


def test_a_worker_that_ends_with_0_when_asked_to_has_not_ended_early() -> None:
    bench = Bench().running()
    bench.now = 10.0
    bench.receive(Goal.STOP)
    bench.exited(0, 0)
    assert bench.observed.ended == ()


def test_a_worker_that_failed_with_the_same_error_is_told_apart() -> None:
    bench = Bench().running()
    bench.submit(WorkerExited(0, 1, a_diagnosis(error="OSError: no file of rank 0")))
    bench.alive.clear()
    bench.submit(WorkerExited(1, 1, a_diagnosis(error="OSError: no file of rank 1")))
    assert bench.observed.failure is not None
    assert bench.observed.failure.followers == (Follower(1, 1, same_error=True),)


def test_a_path_that_no_message_can_hold_is_left_out() -> None:
    for log, kept in (("/logs/1", "/logs/1"), ("/logs/" + "a" * 1_024, ""), ("/lo\ngs", "")):
        bench = Bench().running()
        bench.submit(WorkerExited(0, 1, a_diagnosis(log=log)))
        assert bench.observed.failure is not None
        assert bench.observed.failure.log == kept


def test_what_ends_after_it_was_asked_to_has_not_failed() -> None:
    bench = Bench().running()
    bench.now = 10.0
    bench.receive(Goal.STOP)
    bench.now = 10.2
    bench.submit(WorkerExited(0, -15, a_diagnosis(), age_s=0.1))
    assert bench.observed.failure is None


@pytest.mark.parametrize(("exit_code", "followed"), [(1, True), (-6, True), (0, False), (-15, False), (137, False)])
def test_workers_that_fail_after_the_first_are_reported_unless_they_were_ended(exit_code: int, followed: bool) -> None:
    bench = Bench().running(assignment=an_assignment(first_rank=4, world_size=8))
    bench.exited(1, 3)
    effects = bench.exited(0, exit_code)
    failure = bench.observed.failure
    assert failure is not None
    assert (failure.rank, failure.followers) == (5, (Follower(4, exit_code),) if followed else ())
    assert (SendObserved in kinds(effects)) == followed


def test_a_report_is_shown_once() -> None:
    bench = Bench()
    bench.open()
    assert Show in kinds(bench.receive(Goal.RUN, round=2, report=a_report()))
    assert Show not in kinds(bench.receive(Goal.RUN, round=2, report=a_report(age_s=5.0)))
    assert Show in kinds(bench.receive(Goal.STOP, round=3, report=a_report(round=2)))


def test_the_last_message_carries_the_report() -> None:
    bench = Bench()
    bench.open()
    outcome = Outcome(Result.FAILED, 3, "worker of rank 0 failed")
    effects = bench.receive(Goal.EXIT, outcome=outcome, report=a_report())
    assert kinds(effects) == [Notice, Show, Exit]
    assert bench.last(Exit).report == a_report()


def test_that_a_job_is_begun_anew_is_a_warning_shown_once() -> None:
    bench = Bench()
    bench.open()
    remark = "job mnist succeeded 12 s ago (run e-1); this begins run e-2"
    warnings = [
        effect
        for goal in (Goal.WAIT, Goal.WAIT, Goal.RUN)
        for effect in bench.receive(goal, remark=remark)
        if isinstance(effect, Notice) and effect.level is Level.WARNING
    ]
    assert [warning.text for warning in warnings] == [remark]
