"""When a node checks its host, what it says and reports of that, and that nothing waits for it."""

from typing import Any

import pytest
from msgspec.structs import replace

from coordinatord.protocol.messages import CheckResult, Goal, HealthCheck, Phase
from nodeclient.core.effects import CheckHealth, Level, Notice, SendObserved, Start
from nodeclient.core.events import HealthChecked, SearchBegan
from nodeclient.core.host_health import GpuFacts, GpuUse, HostFacts
from nodeclient.core.host_tests import AGAIN_AFTER_S, WITHIN_S
from tests.support.bench import SETTINGS, Bench

CHECKED = replace(SETTINGS, checks_health=True)


LONG_S = 100 * AGAIN_AFTER_S
"""The coordinator is silent on the bench."""


def joined() -> Bench:
    """Begin with a node that has just joined, whose first check is under way."""
    bench = Bench(CHECKED)
    assert bench.submit(SearchBegan()) == [CheckHealth(WITHIN_S)]
    bench.open()
    bench.receive(Goal.WAIT, round=0, lease_s=LONG_S)
    return bench


def run(bench: Bench, number: int = 1) -> Bench:
    bench.receive(Goal.RUN, round=number, lease_s=LONG_S)
    bench.started()
    return bench


def fail(bench: Bench, **stop: Any) -> None:
    """End the round of a node because of a worker of it, or because of another node."""
    if stop:
        bench.receive(Goal.STOP, round=bench.agent.round, **stop)
        bench.all_exited(-15)
    else:
        bench.exited(0, 1)
        bench.exited(1, -9)


@pytest.mark.parametrize(
    ("exit_code", "text", "result", "said", "level", "outcome"),
    [
        (0, "", CheckResult.GOOD, "", None, ""),
        (0, "8 GPUs", CheckResult.GOOD, "8 GPUs", Level.INFO, "passes"),
        (1, "hot", CheckResult.WARNING, "hot", Level.WARNING, "warns"),
        (2, "GPU 3\a", CheckResult.BAD, "GPU 3 ", Level.ERROR, "failed"),
        (3, "no GPU", CheckResult.UNKNOWN, "exit code 3: no GPU", Level.WARNING, "gave no answer"),
        (-11, "", CheckResult.UNKNOWN, "killed by SIGSEGV", Level.WARNING, "gave no answer"),
        (None, "not found", CheckResult.UNKNOWN, "not found", Level.WARNING, "gave no answer"),
    ],
    ids=["good", "good with a text", "warning", "bad", "another code", "a signal", "none"],
)
def test_a_check_is_reported_at_once_and_said_if_it_says_anything(
    exit_code: int | None, text: str, result: CheckResult, said: str, level: Level | None, outcome: str
) -> None:
    bench = joined()
    effects = bench.submit(HealthChecked(exit_code, text))
    checks = [effect.observed.check for effect in effects if isinstance(effect, SendObserved)]
    assert checks == [HealthCheck(1, result, said)]
    notices = [(each.level, each.text) for each in effects if isinstance(each, Notice)]
    assert notices == ([] if level is None else [(level, f"the health check of this host {outcome}: {said}")])


def test_a_check_runs_again_when_a_failure_has_ended_the_workers_of_a_round() -> None:
    for stop in ({}, {"planned": False}):
        bench = run(joined())
        bench.submit(HealthChecked(0, ""))
        fail(bench, **stop)
        assert bench.count(CheckHealth) == 2
        assert bench.agent.phase is Phase.STOPPING, "it runs beside the sweep"
        bench.sweep_failed()
        bench.submit(HealthChecked(0, ""))
        bench.swept()
        assert bench.count(CheckHealth) == 2, "it runs once a round"


def test_nothing_is_checked_after_a_planned_stop_a_success_and_before_the_end() -> None:
    for stop in ({"planned": True}, {"goal": Goal.EXIT}, {}):
        bench = run(joined())
        bench.submit(HealthChecked(0, ""))
        if "goal" in stop:
            bench.leave()
            bench.all_exited(-15)
        elif stop:
            fail(bench, **stop)
        else:
            bench.all_exited(0)
        assert bench.sweeping
        assert bench.count(CheckHealth) == 1


def test_a_round_begins_while_a_check_is_under_way_and_the_last_result_counts_meanwhile() -> None:
    bench = joined()
    assert joined().observed.check is None
    run(bench)
    assert bench.count(Start) == 1
    bench.submit(HealthChecked(1, "hot"))
    fail(bench)
    bench.swept()
    run(bench, 2)
    assert bench.count(Start) == 2
    assert bench.observed.check == HealthCheck(1, CheckResult.WARNING, "hot")
    fail(bench)
    assert bench.count(CheckHealth) == 2, "two are never under way"


@pytest.mark.parametrize("exit_code", [2, None], ids=["bad", "unknown"])
def test_a_check_that_did_not_pass_is_made_again_while_no_worker_lives_and_said_once(exit_code: int | None) -> None:
    bench = joined()
    bench.submit(HealthChecked(exit_code, "GPU 3"))
    for number in (2, 3):
        bench.advance(AGAIN_AFTER_S - 0.1)
        assert bench.count(CheckHealth) == number - 1
        bench.advance(0.1)
        assert bench.count(CheckHealth) == number
        assert not any(isinstance(each, Notice) for each in bench.submit(HealthChecked(exit_code, "GPU 3")))
        assert bench.observed.check is not None
        assert bench.observed.check.number == number
    run(bench)
    bench.advance(2 * AGAIN_AFTER_S)
    assert bench.count(CheckHealth) == 3, "it has workers"
    fail(bench)
    bench.swept()
    assert bench.count(CheckHealth) == 4
    [notice] = [each for each in bench.submit(HealthChecked(0, "")) if isinstance(each, Notice)]
    assert notice == Notice(Level.INFO, "the health check of this host passes", "health_checked")
    bench.advance(2 * AGAIN_AFTER_S)
    assert bench.count(CheckHealth) == 4


FACTS = HostFacts(gpus=(GpuFacts("GPU-1", recovery=0),))

SICK = HostFacts(gpus=(GpuFacts("GPU-1", recovery=1),))

RESET = "built-in check: GPU GPU-1 needs a reset: nvidia-smi --gpu-reset"

LATE = replace(FACTS, clock_ahead_s=-9.0)

BEHIND = "built-in check: the clock of this host is 9 s behind the coordinator's: does NTP run on both (timedatectl)?"


@pytest.mark.parametrize(
    ("exit_code", "text", "facts", "result", "said"),
    [
        (0, "8 GPUs", FACTS, CheckResult.GOOD, "8 GPUs"),
        (0, "8 GPUs", SICK, CheckResult.BAD, RESET),
        (1, "hot", SICK, CheckResult.BAD, RESET),
        (2, "hot", SICK, CheckResult.BAD, f"hot; {RESET}"),
        (1, "hot", LATE, CheckResult.WARNING, f"hot; {BEHIND}"),
        (2, "hot", LATE, CheckResult.BAD, "hot"),
        (3, "", LATE, CheckResult.UNKNOWN, "exit code 3"),
        (0, "", replace(FACTS, unread=("x (y)",)), CheckResult.GOOD, "built-in check: cannot be checked: x (y)"),
    ],
)
def test_the_worse_of_the_command_and_the_built_in_check_counts(
    exit_code: int, text: str, facts: HostFacts, result: CheckResult, said: str
) -> None:
    bench = joined()
    bench.submit(HealthChecked(exit_code, text, facts))
    assert bench.observed.check == HealthCheck(1, result, said)


def test_what_the_built_in_check_found_bad_stays_so_until_it_is_mended() -> None:
    bench = joined()
    two = HostFacts(gpus=(*(FACTS.gpus or ()), GpuFacts("GPU-2", recovery=0)))
    bench.submit(HealthChecked(0, "", two))
    fail(run(bench))
    bench.swept()
    for facts, result in ((FACTS, CheckResult.BAD), (FACTS, CheckResult.BAD), (two, CheckResult.GOOD)):
        bench.submit(HealthChecked(0, "", facts))
        assert bench.observed.check is not None
        assert bench.observed.check.result is result
        bench.advance(AGAIN_AFTER_S)


def test_what_was_bad_and_cannot_be_read_now_is_no_good_news() -> None:
    bench = joined()
    hung = HostFacts(has_driver=True, unread=("GPUs (no answer within 8 s)",))
    results = []
    for facts in (hung, SICK, hung, FACTS, hung):
        bench.submit(HealthChecked(0, "", facts))
        results.append(bench.observed.check and bench.observed.check.result)
        bench.advance(AGAIN_AFTER_S)
        bench.submit(SearchBegan())
    good = CheckResult.GOOD
    assert results == [good, CheckResult.BAD, CheckResult.UNKNOWN, good, good]


def test_memory_of_gpus_is_looked_at_where_no_process_of_a_worker_lives() -> None:
    bench = joined()
    used = replace(FACTS, in_use=(GpuUse("nvidia0", 1 << 30),))
    bench.submit(HealthChecked(0, "", used))
    results = [bench.observed.check and bench.observed.check.result]
    fail(run(bench))
    bench.submit(HealthChecked(0, "", used))
    results.append(bench.observed.check and bench.observed.check.result)
    assert results == [CheckResult.WARNING, CheckResult.GOOD], "after a round the sweep looks at it"


def test_a_node_without_any_check_checks_nothing() -> None:
    bench = Bench()
    assert bench.submit(SearchBegan()) == []
    fail(bench.running())
    assert bench.count(CheckHealth) == 0
