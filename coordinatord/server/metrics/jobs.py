"""Reads the figures of jobs from the machine, and makes Prometheus' metric families from them.

Figures are plain numbers, so that another thread can make the families.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from msgspec import Struct
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coordinatord.core.keeping.known import kept_of
from coordinatord.core.rounds.queries.time_attribution import spent
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import MemberState
from coordinatord.core.rounds.state.run import Health, Run
from coordinatord.core.rounds.values.time_ledger import Activity
from coordinatord.core.shown.job_view import laggard_s, pace
from coordinatord.protocol.messages import Cause, ColdCause, Launcher
from coordinatord.server.metrics.rounds import REASONS, JobTally

ENDED_EXPORTED_S = 900.0
"""How long a job has series after its end: several scrapes see how it ended, so that alerts fire."""


class JobFigures(Struct, frozen=True):
    """The figures of one job at one moment."""

    job: str
    state: State
    is_exported: bool
    """Whether it lives, or has ended within `ENDED_EXPORTED_S`."""
    nodes: tuple[int, ...]
    """The number of nodes in each `MemberState`."""
    nodes_min: int
    nodes_max: int
    rounds: tuple[int, ...]
    """The number of ended rounds for each of `REASONS`."""
    nodes_lost: int
    cold_rounds: tuple[int, ...]
    """The number of rounds that started cold in spite of `--preload`, for each `ColdCause`."""
    failures: tuple[int, ...]
    """The number of rounds that the failure of a worker ended, for each `Cause`."""
    restarts: int
    restarts_max: int | None
    """None if torchrun's agents count them."""
    seconds: tuple[float, ...]
    """The seconds of each `Activity`."""
    step: int | None
    """The step of all workers; None if not known. So are `steps_per_second` and the steps below."""
    steps_per_second: float | None
    kept_step: int | None
    """The newest whole step in the nodes' memory."""
    copied_step: int | None
    """The newest step that survives the loss of any one host."""
    disk_step: int | None
    """The newest whole step of the run on the disk."""
    redone_steps: int | None
    """How many steps the round did again after it resumed; None if it did not resume."""
    disk_failing: bool | None
    """Whether the last attempt to write a step has failed; None if no node may write any."""
    laggard_seconds: float | None
    """The lateness of the laggard; 0 if there is none, and None if not known."""
    diverged: bool
    """Whether ranks of the round have different states, though they should have the same."""
    health: Health


def figures_of(run: Run, tally: JobTally, now: float) -> JobFigures:
    """Read the figures of a job as of `now`."""
    seconds, kept = _seconds(run, tally, now), kept_of(run)
    return JobFigures(
        job=run.job,
        state=run.shown_state,
        is_exported=not run.durable.state.ended or now - run.durable.ledger.settled_at <= ENDED_EXPORTED_S,
        nodes=tuple(run.roll.count(state) for state in MemberState),
        nodes_min=run.spec.nodes_min,
        nodes_max=run.spec.nodes_max,
        rounds=tuple(tally.rounds[reason] for reason in REASONS),
        nodes_lost=tally.nodes_lost,
        cold_rounds=tuple(tally.cold[cause] for cause in ColdCause),
        failures=tuple(tally.failures[cause] for cause in Cause),
        restarts=run.durable.restarts_used,
        restarts_max=None if run.spec.launcher is Launcher.TORCHRUN else run.spec.max_restarts,
        seconds=tuple(seconds[activity] for activity in Activity),
        step=None if run.durable.state.ended else run.step,
        steps_per_second=pace(run, now),
        kept_step=None if (newest := kept.index.newest_whole) is None else newest.step,
        copied_step=None if (copied := kept.copied) is None else copied.step,
        disk_step=None if (on_disk := kept.disk.step) is None else on_disk.step,
        redone_steps=None if (resume := run.durable.resume) is None else resume.redone,
        disk_failing=None if kept.disk.every_s is None else bool(kept.disk.problem),
        laggard_seconds=laggard_s(run),
        diverged=run.durable.divergence is not None,
        health=run.health,
    )


def _seconds(run: Run, tally: JobTally, now: float) -> dict[str, float]:
    """Return the seconds of a run by activity, none less than at the last scrape, with the true sum.

    The ledger may move its last seconds to another activity, when it learns that the round was broken or did not train
    yet. Prometheus would take a counter that falls for a restarted one. So a counter that should fall stands still, and
    those that should rise share the elapsed time, until all have their true values.
    """
    shown = tally.shown if tally.shown_run == run.id else dict.fromkeys(Activity, 0.0)
    actual = spent(run, now).by_activity()
    missing = {activity: max(0.0, actual[activity] - shown[activity]) for activity in Activity}
    elapsed, total_missing = sum(actual.values()) - sum(shown.values()), sum(missing.values())
    part = min(1.0, max(0.0, elapsed / total_missing)) if total_missing else 0.0
    tally.shown = {activity: shown[activity] + part * missing[activity] for activity in Activity}
    tally.shown_run = run.id
    return tally.shown


class JobsCollector(Collector):
    """Makes the metric families of all jobs."""

    def __init__(self) -> None:
        self.jobs: Sequence[JobFigures] = ()
        """The figures for the next `collect`."""

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families."""
        jobs = self.jobs
        yield _jobs_by_state(jobs)
        exported = [job for job in jobs if job.is_exported]
        live = [job for job in jobs if not job.state.ended]
        states = (((job.job, job.state), 1) for job in exported)
        yield _gauge("job_state", "1 for the state that the job's run is in.", states, "state")
        healths = (((job.job, health), int(health is job.health)) for job in live for health in Health)
        yield _gauge("job_health", "1 for the health of the round of a job that has not ended.", healths, "health")
        yield _gauge(
            "nodes",
            "Nodes of a job that has not ended, by their state in it.",
            _by(MemberState, live, "nodes"),
            "state",
        )
        yield _gauge("job_nodes_min", "The least number of nodes of a round.", _plain(live, "nodes_min"))
        yield _gauge("job_nodes_max", "The greatest number of nodes of a round.", _plain(live, "nodes_max"))
        yield _counter("rounds", "Rounds that ended, by reason.", _by(REASONS, exported, "rounds"), "reason")
        yield _counter("nodes_lost", "Nodes that were lost, in a round or not.", _plain(exported, "nodes_lost"))
        cold = "Rounds that began with cold workers in spite of --preload, by what kept these from being forked."
        yield _counter("cold_rounds", cold, _by(ColdCause, exported, "cold_rounds"), "cause")
        failures = "Rounds that the failure of a worker ended, by the class of the cause."
        yield _counter("failures", failures, _by(Cause, exported, "failures"), "cause")
        yield _counter("restarts", "Restarts of the run that were charged to its budget.", _plain(exported, "restarts"))
        budget = "The budget of restarts, unless torchrun counts them."
        yield _gauge("job_restarts_max", budget, _plain(live, "restarts_max"))
        yield _counter(
            "job_seconds", "Where the time of the job's run went.", _by(Activity, exported, "seconds"), "cause"
        )
        for name, meaning in TRAINING.items():
            yield _gauge(f"job_{name}", meaning, _plain(live, name))


TRAINING = {
    "step": "The step that all workers have come to, of those that report any.",
    "steps_per_second": "The pace of the last half minute.",
    "kept_step": "The newest step that is whole in the memory of the nodes.",
    "copied_step": "The newest step that outlives the loss of any one host, by its copies on others.",
    "disk_step": "The newest step of the job's run that its nodes have written to the disk.",
    "redone_steps": (
        "Steps of earlier rounds that the current or last round did again, where it resumed from kept state."
    ),
    "disk_failing": "1 if the last attempt to write a step to the disk has failed, where nodes write any.",
    "diverged": "1 if ranks of the round have different parameters or optimizer state, though they should be alike.",
    "laggard_seconds": "How late the worker comes to collectives that all others wait for; 0 if there is none.",
}
"""The gauges of a live job's progress, each with its help text."""


Rows = Iterable[tuple[Sequence[str], float]]
"""Samples of a family: the values of the labels, the job first, and the number."""


def _family(
    kind: type[GaugeMetricFamily | CounterMetricFamily], name: str, meaning: str, rows: Rows, *labels: str
) -> Metric:
    family = kind(f"coordinatord_{name}", meaning, labels=["job_id", *labels])
    for values, number in rows:
        family.add_metric(values, number)
    return family


_gauge = partial(_family, GaugeMetricFamily)
_counter = partial(_family, CounterMetricFamily)


def _jobs_by_state(jobs: Iterable[JobFigures]) -> Metric:
    counts = dict.fromkeys(State, 0)
    for job in jobs:
        counts[job.state] += 1
    family = GaugeMetricFamily("coordinatord_jobs", "Jobs that are known, by the state of their run.", labels=["state"])
    for state, count in counts.items():
        family.add_metric([state], count)
    return family


def _plain(jobs: Iterable[JobFigures], name: str) -> Rows:
    """Return a sample of each job that knows the figure of this name."""
    return (((job.job,), value) for job in jobs if (value := getattr(job, name)) is not None)


def _by(labels: Iterable[str], jobs: Iterable[JobFigures], name: str) -> Rows:
    """Return a sample of each job and label from the figure of this name, which has a value for each label."""
    return (
        ((job.job, label), number) for job in jobs for label, number in zip(labels, getattr(job, name), strict=True)
    )
