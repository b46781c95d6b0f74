"""Samples each job for the charts of the page.

Samples cost heartbeats nothing: they are taken once a second for a young run, and every half minute for an old one. The
series is not stored. After a restart of the daemon it begins with the data of the rounds.
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

LOOK_S = 1.0
"""The shortest sampling interval: nodes report once a second."""

LOOKS_PER_POINT = 4
"""The samples for each point. The pace is a mean over half a minute, which limits the interval."""

PIECE = 1_000
"""Nodes of jobs that are sampled without a pause: with `driver.JOB_COST`, some 25 jobs, a millisecond."""


@dataclass(slots=True)
class _RunSeries:
    """The series of one run."""

    series: TimeSeries = field(default_factory=TimeSeries)
    due_at: float = 0.0


class SeriesSampler:
    """The time series of live runs, and of ended ones that are viewed."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._kept: dict[str, _RunSeries] = {}

    async def watch(self) -> None:
        """Sample live runs for as long as the daemon serves."""
        while True:
            await asyncio.sleep(LOOK_S)
            async for run in iterate_jobs(self._driver, PIECE):
                kept = self._kept.get(run.id)
                if not run.durable.state.ended and (kept is None or kept.due_at <= self._driver.now):
                    self.series(run, run.durable.rounds)

    def series(self, run: Run, rounds: RoundHistory) -> TimeSeries:
        """Return the series of a run up to now; a new one begins with the data of its `rounds`."""
        kept = self._kept.get(run.id)
        if kept is None:
            self._forget_old()
            kept = self._kept[run.id] = _RunSeries()
            for past in past_samples(run, rounds):
                kept.series.add(past)
        now = self._driver.now
        kept.series.add(sample(run, now))
        kept.due_at = now + min(max(LOOK_S, kept.series.span_s / LOOKS_PER_POINT), WINDOW_S)
        return kept.series

    def _forget_old(self) -> None:
        """Drop runs that the machine no longer has."""
        known = {run.id for run in self._driver.machine.jobs.values()}
        self._kept = {run: kept for run, kept in self._kept.items() if run in known}


def sample(run: Run, now: float) -> Sample:
    """Return a sample of a run."""
    so_far = spent(run, now)
    return Sample(so_far.total, so_far.training, run.durable.restarts_used, _pace(run))


def _pace(run: Run) -> float | None:
    """Return the pace of the round; 0 without a round, and None if not known."""
    if not run.durable.reports_steps or run.durable.state.ended:
        return None
    if run.durable.state is not State.RUNNING or run.health is not Health.WELL:
        return 0.0
    return run.progress.steps_per_s


def past_samples(run: Run, rounds: RoundHistory) -> Iterator[Sample]:
    """Yield samples of the past from the kept rounds, which have no pace."""
    restarts = run.durable.restarts_used - sum(round_.charged for round_ in rounds)
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
