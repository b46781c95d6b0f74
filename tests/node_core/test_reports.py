"""What a node says of a failure, and what it shows of the first cause that it is told."""

from __future__ import annotations

from coordinatord.wire.messages import Goal, Outcome, Result
from nodeclient.core.effects import Exit, Notice, Show
from nodeclient.core.events import WorkerExited
from tests.support.bench import Bench, kinds
from tests.support.builders import a_report, an_account


def test_a_failure_carries_what_is_known_of_it_within_the_bounds_of_the_protocol() -> None:
    bench = Bench().running()
    lines = tuple(f"line {number}\x1b" for number in range(100))
    account = an_account(pid=7, message="m" * 1000, error="ValueError: " + "e" * 1000, last_lines=lines)
    bench.now = 10.0
    bench.submit(WorkerExited(0, 1, account, age_s=0.25))
    failure = bench.observed.failure
    assert failure is not None
    assert (failure.pid, len(failure.message), len(failure.error), failure.age_s) == (7, 512, 512, 0.25)
    assert failure.last_lines[-1] == "line 99 "
    assert len(failure.last_lines) == 40


def test_a_report_is_shown_once() -> None:
    bench = Bench()
    bench.open()
    assert Show in kinds(bench.told(Goal.RUN, round=2, report=a_report()))
    assert Show not in kinds(bench.told(Goal.RUN, round=2, report=a_report(age_s=5.0)))
    assert Show in kinds(bench.told(Goal.STOP, round=3, report=a_report(round=2)))


def test_the_last_word_carries_the_report() -> None:
    bench = Bench()
    bench.open()
    outcome = Outcome(Result.FAILED, 3, "worker of rank 0 failed")
    effects = bench.told(Goal.EXIT, outcome=outcome, report=a_report())
    assert kinds(effects) == [Notice, Show, Exit]
    assert bench.last(Exit).report == a_report()
