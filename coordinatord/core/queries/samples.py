"""What a run's time series is made of: the run as it is now, and what its last rounds show of the time before."""

from __future__ import annotations

from collections.abc import Iterator

from coordinatord.core.queries.time_attribution import spent
from coordinatord.core.state.durable import State
from coordinatord.core.state.run import Run
from coordinatord.core.values.health import Health
from coordinatord.core.values.round_history import RoundHistory
from coordinatord.core.values.time_series import Sample


def sample(run: Run, now: float) -> Sample:
    """Return what is known of a run now."""
    so_far = spent(run, now)
    return Sample(so_far.total, so_far.training, run.durable.restarts_used, _pace(run))


def _pace(run: Run) -> float | None:
    """Return the pace of the round; 0 where there is none, and None where it is not known."""
    if not run.durable.reports_steps or run.durable.state.ended:
        return None
    if run.durable.state is not State.RUNNING or run.health is not Health.WELL:
        return 0.0
    return run.progress.steps_per_s


def past_samples(run: Run, rounds: RoundHistory) -> Iterator[Sample]:
    """Yield what the rounds that are kept show of the time before now; their pace is not kept."""
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
