"""A run over time, in a bounded number of points: what each point says, and what a restart of the daemon leaves."""

import random

import pytest

from coordinatord.core.shown.time_series import POINTS_MAX, Sample, TimeSeries
from coordinatord.server.reads.series_sampler import past_samples, sample
from tests.support.script import Stage, play

MONTH_S = 30 * 86_400


def shares(series: TimeSeries) -> list[float]:
    """Return the share of each point that went into training."""
    ends = [min((index + 1) * series.span_s, series.upto_s) for index in range(len(series.training_s))]
    spans = [end - begin for begin, end in zip([0.0, *ends], ends, strict=False)]
    done = [end - begin for begin, end in zip([0.0, *series.training_s], series.training_s, strict=False)]
    return [round(part / span, 3) for part, span in zip(done, spans, strict=True)]


def a_series(*samples: tuple[float, float, int, float | None]) -> TimeSeries:
    """Return a series of these samples."""
    series = TimeSeries()
    for values in samples:
        series.add(Sample(*values))
    return series


def test_a_young_run_has_a_point_for_each_second() -> None:
    series = a_series(
        (0.5, 0.0, 0, None), (1.0, 0.0, 0, 0.0), (2.0, 0.5, 0, 4.0), (3.0, 1.5, 1, 2.0), (3.5, 2.0, 1, 3.0)
    )
    assert (series.span_s, series.upto_s) == (1.0, 3.5)
    assert series.steps_per_s == [0.0, 4.0, 2.0, 3.0]
    assert shares(series) == [0.0, 0.5, 1.0, 1.0]
    assert list(series.restarts) == [0, 0, 1, 1]


def test_a_pace_that_is_not_known_is_not_taken_for_none_at_all() -> None:
    series = a_series((0.4, 0.0, 0, None), (0.8, 0.0, 0, 6.0), (3.5, 0.0, 0, None))
    assert series.steps_per_s == [6.0, None, None, None]


def test_time_without_a_look_is_filled_evenly() -> None:
    series = a_series((1.0, 0.0, 0, 0.0), (5.0, 2.0, 1, 3.0))
    assert shares(series) == [0.0, 0.5, 0.5, 0.5, 0.5]
    assert list(series.restarts) == [0, 0, 0, 0, 1], "when it was is not known"


@pytest.mark.parametrize(("gap_s", "pace"), [(30, 3.0), (31, None)])
def test_a_pace_holds_for_the_time_that_it_is_a_mean_of(gap_s: int, pace: float | None) -> None:
    series = a_series((1.0, 0.0, 0, 0.0), (1.0 + gap_s, 2.0, 0, 3.0))
    assert series.steps_per_s == [0.0, *[pace] * (gap_s - 1), 3.0]


def test_what_proves_to_be_no_training_is_taken_back() -> None:
    train = [(float(second), float(second), 0, 2.0) for second in range(1, 11)]
    series = a_series(*train, (11.0, 4.0, 0, 0.0))
    assert shares(series) == [1.0] * 4 + [0.0] * 7


@pytest.mark.parametrize("age_s", [240.0, 241.0, 3_600.0, MONTH_S])
def test_a_run_of_any_age_has_a_bounded_number_of_points(age_s: float) -> None:
    series = TimeSeries()
    for look in range(1, 2_001):
        at = age_s * look / 2_000
        series.add(Sample(at, at / 2, look // 1_000, 5.0))
    points = len(series.training_s)
    assert POINTS_MAX / 2 <= points <= POINTS_MAX
    assert len(series.restarts) == len(series.steps_per_s) == points
    assert (points - 1) * series.span_s < series.upto_s == age_s <= points * series.span_s
    assert set(shares(series)) == {0.5}
    assert set(series.steps_per_s) == {5.0}
    assert (series.restarts[points // 2 - 2], series.restarts[-1]) == (0, 2)


def test_points_that_become_one_keep_sums_and_ends() -> None:
    dice = random.Random(7)  # noqa: S311 - it makes a history, and no secret
    looks, at, training_s = [], 0.0, 0.0
    for _ in range(900):
        at += (span := dice.uniform(0.1, 0.9))
        training_s += span * dice.random()
        looks.append(Sample(at, training_s, int(at) // 100, dice.random()))
    series = TimeSeries()
    for look in looks:
        series.add(look)
    for index, upto in enumerate(series.training_s[:-1]):
        end = (index + 1) * series.span_s
        before, after = max(x.training_s for x in looks if x.at <= end), min(x.training_s for x in looks if x.at >= end)
        assert before - 1e-9 <= upto <= after + 1e-9
        paces = [x.steps_per_s for x in looks if end - series.span_s < x.at <= end and x.steps_per_s is not None]
        assert series.steps_per_s[index] == pytest.approx(sum(paces) / len(paces))
    assert series.training_s[-1] == training_s


def a_job() -> Stage:
    """Return a job of two rounds: the first failed after 30 s, the second trains."""
    stage = play("join n1 n2 min=2 max=2", "running n1 n2")
    steps(stage, 1, 30)
    stage.play("fail n1", "stopped n1 n2", "advance 2s", "running n1 n2")
    steps(stage, 61, 20)
    return stage


def steps(stage: Stage, first: int, seconds: int) -> None:
    """Let both nodes do two steps a second."""
    for second in range(seconds):
        stage.play("advance 1s", f"step n1 n2 {first + 2 * second}")


def test_a_run_is_sampled_as_its_status_shows_it() -> None:
    stage = a_job()
    run = stage.run
    now = sample(run, stage.now)
    assert now.restarts == 1
    assert now.steps_per_s == pytest.approx(2.0)
    stage.play("fail n1")
    assert sample(run, stage.now).steps_per_s == 0.0


def test_after_a_restart_the_rounds_tell_when_it_trained() -> None:
    stage = a_job()
    live = TimeSeries()
    live.add(sample(stage.run, stage.now))
    stage.play("die 0s")
    run = stage.run
    series = TimeSeries()
    for past in past_samples(run, run.durable.rounds):
        series.add(past)
    series.add(sample(run, stage.now))
    assert series.training_s[-1] == live.training_s[-1] > 40
    assert series.upto_s == live.upto_s
    assert set(series.steps_per_s) == {None}
    ended = run.durable.rounds.current
    assert ended is not None
    began = int(ended.before.total)
    assert list(series.restarts[: began - 1]) == [0] * (began - 1)
    assert list(series.restarts[began + 1 :]) == [1] * (len(series.restarts) - began - 1)
