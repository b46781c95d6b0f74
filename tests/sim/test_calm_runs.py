"""Healthy trainings are let alone, whatever they do between their steps; `python -m tests.sim.calm_runs` plays more."""

from __future__ import annotations

import random

import pytest

from tests.sim.calm_runs import explore, last_calm_run
from tests.sim.calm_runs_without_steps import calm_run_without_steps
from tests.sim.calm_training import CalmTraining

RUNS = 300


@pytest.mark.slow
def test_no_healthy_training_is_ended_though_many_are_looked_at() -> None:
    found = explore(range(RUNS))
    assert found.false_alarms == []
    assert found.counts["looks"] > RUNS
    assert found.counts["BusyWorkerAwaited"] > RUNS / 20
    assert found.counts["TrainingResumed"] > RUNS / 10
    assert found.counts["restarts"] > RUNS / 10


@pytest.mark.slow
def test_no_healthy_training_is_ended_that_reports_no_steps() -> None:
    found = explore(range(RUNS), calm_run_without_steps)
    assert found.false_alarms == []
    assert found.counts["looks"] > RUNS / 5
    assert found.counts["BusyWorkerAwaited"] > RUNS / 50


@pytest.mark.slow
def test_no_healthy_training_is_ended_by_its_pace_where_no_restart_is_left() -> None:
    found = explore(range(RUNS), last_calm_run)
    assert found.false_alarms == []
    assert found.counts["looks"] > RUNS
    assert found.counts["BusyWorkerAwaited"] > RUNS / 20


@pytest.mark.parametrize("seed", range(20))
def test_steps_and_collectives_of_a_training_only_grow(seed: int) -> None:
    training = CalmTraining(random.Random(seed), ranks=4, seconds=100.0)  # noqa: S311 - repeatable on purpose
    steps, number = 0, 0
    for now in (0.1 * tenth for tenth in range(1_000)):
        (done, at), seen = training.stretch_at(now).stepped(now), training.seen(1, now)
        assert done >= steps
        assert at <= now
        steps = done
        assert seen.collective is not None
        assert seen.collective.number >= number
        number = seen.collective.number
    assert steps > 0
