"""Healthy trainings are let alone, whatever they do between their steps; `python -m tests.sim.calm_runs` plays more."""

from __future__ import annotations

import random

import pytest

from tests.sim.calm_runs import CalmRun, LastRun, LateRun, ResumedRun, UnnamedRun, UnrecordedRun, explore
from tests.sim.calm_training import CalmTraining

RUNS = 300


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "runs", "least"),
    [
        (CalmRun, RUNS, {"looks": 1, "BusyWorkerAwaited": 1 / 20, "TrainingResumed": 1 / 10, "restarts": 1 / 10}),
        (UnnamedRun, RUNS, {"looks": 1 / 5, "BusyWorkerAwaited": 1 / 50}),
        (UnrecordedRun, RUNS, {"looks": 1, "BusyWorkerAwaited": 1 / 50}),
        (LastRun, RUNS, {"looks": 1, "BusyWorkerAwaited": 1 / 20}),
        (ResumedRun, RUNS // 5, {"looks": 1, "BusyWorkerAwaited": 1 / 10, "FirstStepOverdue": 1 / 2}),
        (LateRun, RUNS // 5, {"looks": 1, "BusyWorkerAwaited": 1 / 2, "FirstStepOverdue": 1 / 2}),
    ],
)
def test_no_healthy_training_is_ended_though_many_are_looked_at(
    kind: type[CalmRun], runs: int, least: dict[str, float]
) -> None:
    found = explore(range(runs), kind)
    assert found.false_alarms == []
    assert {name for name, share in least.items() if found.counts[name] <= share * runs} == set()


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
