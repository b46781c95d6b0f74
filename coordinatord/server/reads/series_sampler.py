"""Samples each run over time, for the charts of the page: its training time, its restarts and its pace.

A chart has a limited number of points, which cover more time the older a run is. So a young run is sampled once a
second, and an old one every half minute. Samples are not stored: after a restart of the daemon, a series begins with
samples made from the records of rounds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

from coordinatord.core.rounds.queries.time_attribution import spent
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.run import Health, Run
from coordinatord.core.rounds.values.round_history import RoundHistory
from coordinatord.core.rounds.values.training_progress import WINDOW_S
from coordinatord.core.shown.time_series import Sample, TimeSeries
from coordinatord.server.driver import Driver, iterate_jobs

SAMPLE_EVERY_S = 1.0
"""The shortest sampling interval: nodes report once a second."""

SAMPLES_PER_POINT = 4
"""How many samples make a point of a series; its pace is their mean. A sample has the mean pace over `WINDOW_S`, so the
sampling interval never exceeds it: no time is left out."""


@dataclass(slots=True)
class _RunSeries:
    """The series of one run."""

    series: TimeSeries = field(default_factory=TimeSeries)
    due_at: float = 0.0
    """When to take the next sample, by the driver's clock."""


class SeriesSampler:
    """Keeps the time series of live runs, and of ended runs that are viewed."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._series: dict[str, _RunSeries] = {}

    async def watch(self) -> None:
        """Sample live runs while the daemon serves."""
        while True:
            await asyncio.sleep(SAMPLE_EVERY_S)
            async for run in iterate_jobs(self._driver):
                sampled = self._series.get(run.id)
                if not run.durable.state.ended and (sampled is None or sampled.due_at <= self._driver.now):
                    self.sample_run(run, run.durable.rounds)

    def sample_run(self, run: Run, rounds: RoundHistory) -> TimeSeries:
        """Add a sample to the series of a run; return the series. A new series begins with samples of its `rounds`."""
        sampled = self._series.get(run.id)
        if sampled is None:
            self._drop_old()
            sampled = self._series[run.id] = _RunSeries()
            for past in past_samples(run, rounds):
                sampled.series.add(past)
        now, series = self._driver.now, sampled.series
        series.add(sample(run, now))
        sampled.due_at = now + min(max(SAMPLE_EVERY_S, series.span_s / SAMPLES_PER_POINT), WINDOW_S)
        return series

    def _drop_old(self) -> None:
        known = {run.id for run in self._driver.machine.jobs.values()}
        self._series = {run: sampled for run, sampled in self._series.items() if run in known}


def sample(run: Run, now: float) -> Sample:
    """Return a sample of a run at a time."""
    so_far = spent(run, now)
    return Sample(so_far.total, so_far.training, run.durable.restarts_used, _pace(run))


def _pace(run: Run) -> float | None:
    """Return the steps per second; 0 while the run does not train, and None if not known."""
    if not run.durable.reports_steps or run.durable.state.ended:
        return None
    if run.durable.state is not State.RUNNING or run.health is not Health.WELL:
        return 0.0
    return run.progress.pace.steps_per_s


def past_samples(run: Run, rounds: RoundHistory) -> Iterator[Sample]:
    """Yield samples, without a pace, from the recorded rounds, whose times are ages of the run."""
    restarts = run.durable.restarts_used - sum(round_.charged for round_ in rounds)  # those before the recorded rounds
    for round_ in rounds:
        before, after = round_.before, round_.after
        yield Sample(before.total, before.training, restarts, None)
        if round_.running_at is not None:
            yield Sample(round_.running_at, before.training, restarts, None)
        if after is not None:
            if round_.stopped_at is not None:
                yield Sample(round_.stopped_at, after.training, restarts, None)
            restarts += round_.charged
            yield Sample(after.total, after.training, restarts, None)
