"""Reads the figures of jobs from the machine, and makes Prometheus' metric families from them.

The figures are read in the event loop, since the machine changes there. They are plain numbers, from which another
thread makes the families without holding up the loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from msgspec import Struct
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coordinatord.core.keeping.known import kept_of
from coordinatord.core.keeping.sentences import disk_problem, pageable
from coordinatord.core.rounds.queries.reasons import shown_state
from coordinatord.core.rounds.queries.time_attribution import spent
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import MemberState
from coordinatord.core.rounds.state.run import Health, Run
from coordinatord.core.rounds.values.time_ledger import Activity
from coordinatord.core.shown.job_view import laggard_s, pace
from coordinatord.protocol.kept_state import KeptStep
from coordinatord.protocol.messages import Cause, ColdCause, Launcher
from coordinatord.server.metrics.rounds import REASONS, JobTally

ENDED_EXPORTED_S = 900.0
"""How long a job has series after its end: several scrapes see how it ended, so that alerts fire."""

Figure = float | None
"""A number; None if it is not known."""


class JobFigures(Struct, frozen=True):
    """The figures of one job at one moment."""

    job: str
    state: State
    is_exported: bool
    """Whether it lives, or has ended within `ENDED_EXPORTED_S`."""
    figures: Mapping[str, Figure | Sequence[Figure]]
    """The figure of each of `FAMILIES` by its name, or a sequence with one for each value of its label."""


def figures_of(run: Run, tally: JobTally, now: float) -> JobFigures:
    """Read the figures of a job as of `now`."""
    durable, kept = run.durable, kept_of(run)
    figures: dict[str, Figure | Sequence[Figure]] = {
        "job_state": [1 if state is shown_state(run) else None for state in State],  # other states have no series
        "job_health": [health is run.health for health in Health],
        "nodes": [run.roll.count(state) for state in MemberState],
        "job_nodes_min": run.spec.nodes_min,
        "job_nodes_max": run.spec.nodes_max,
        "rounds": [tally.rounds[reason] for reason in REASONS],
        "nodes_lost": tally.nodes_lost,
        "cold_rounds": [tally.cold[cause] for cause in ColdCause],
        "failures": [tally.failures[cause] for cause in Cause],
        "restarts": durable.restarts_used,
        "job_restarts_max": None if run.spec.launcher is Launcher.TORCHRUN else run.spec.max_restarts,
        "job_seconds": _seconds(run, tally, now),
        "job_step": run.step,
        "job_steps_per_second": pace(run, now),
        "job_kept_step": _number_of(kept.index.newest_whole),
        "job_copied_step": _number_of(kept.copied),
        "job_disk_step": _number_of(kept.disk.found.newest),
        "job_redone_steps": None if durable.resume is None else durable.resume.redone,
        "job_disk_failing": None if kept.disk.every_s is None else bool(disk_problem(kept)),
        "job_pageable_nodes": len(pageable(kept)),
        "job_diverged": durable.divergence is not None,
        "job_laggard_seconds": laggard_s(run),
    }
    is_exported = not durable.state.ended or now - durable.ledger.settled_at <= ENDED_EXPORTED_S
    return JobFigures(run.job, shown_state(run), is_exported, figures)


def _number_of(step: KeptStep | None) -> Figure:
    return None if step is None else step.step


def _seconds(run: Run, tally: JobTally, now: float) -> list[float]:
    """Return the seconds of a run by activity. None is less than at the last scrape, and their sum is true.

    The run's ledger, the account of its time, may move its last seconds to another activity, when it learns that the
    round was broken or did not train yet. To Prometheus, a counter that falls has begun anew. So a counter that should
    fall stands still, and those that should rise share the elapsed time, until all have their true values.
    """
    shown = tally.shown if tally.shown_run == run.id else dict.fromkeys(Activity, 0.0)
    actual = spent(run, now).by_activity()
    missing = {activity: max(0.0, actual[activity] - shown[activity]) for activity in Activity}
    elapsed, total_missing = sum(actual.values()) - sum(shown.values()), sum(missing.values())
    part = min(1.0, max(0.0, elapsed / total_missing)) if total_missing else 0.0
    tally.shown = {activity: shown[activity] + part * missing[activity] for activity in Activity}
    tally.shown_run = run.id
    return list(tally.shown.values())


class _Family(Struct, frozen=True):
    """A metric of each job."""

    kind: type[GaugeMetricFamily | CounterMetricFamily]
    name: str
    """The name, without that of the program."""
    meaning: str
    """The help text."""
    label: str = ""
    """The label besides the job; empty without one."""
    values: Iterable[str] = ()
    """The values of this label."""
    after_end: bool = False
    """Whether a job has it for `ENDED_EXPORTED_S` after its end."""

    def metric_of(self, jobs: Iterable[JobFigures]) -> Metric:
        """Make the metric from the figures of all jobs."""
        labels = ["job_id", self.label] if self.label else ["job_id"]
        metric = self.kind(f"coordinatord_{self.name}", self.meaning, labels=labels)
        for job in jobs:
            is_shown = job.is_exported if self.after_end else not job.state.ended
            figures = job.figures[self.name] if is_shown else None
            if isinstance(figures, Sequence):
                for value, figure in zip(self.values, figures, strict=True):
                    if figure is not None:
                        metric.add_metric([job.job, value], figure)
            elif figures is not None:
                metric.add_metric([job.job], figures)
        return metric


_gauge = partial(_Family, GaugeMetricFamily)
_counter = partial(_Family, CounterMetricFamily, after_end=True)

FAMILIES = (
    _gauge("job_state", "1 for the state that the job's run is in.", "state", State, after_end=True),
    _gauge("job_health", "1 for the health of the round of a job that has not ended.", "health", Health),
    _gauge("nodes", "Nodes of a job that has not ended, by their state in it.", "state", MemberState),
    _gauge("job_nodes_min", "The least number of nodes of a round."),
    _gauge("job_nodes_max", "The greatest number of nodes of a round."),
    _counter("rounds", "Rounds that ended, by reason.", "reason", REASONS),
    _counter("nodes_lost", "Nodes that were lost, in a round or not."),
    _counter(
        "cold_rounds",
        "Rounds that began with cold workers in spite of --preload, by what kept these from being forked.",
        "cause",
        ColdCause,
    ),
    _counter("failures", "Rounds that the failure of a worker ended, by the class of the cause.", "cause", Cause),
    _counter("restarts", "Restarts of the run that were charged to its budget."),
    _gauge("job_restarts_max", "The budget of restarts, unless torchrun counts them."),
    _counter("job_seconds", "Where the time of the job's run went.", "cause", Activity),
    _gauge("job_step", "The step that all workers have come to, of those that report any."),
    _gauge("job_steps_per_second", "The pace of the last half minute."),
    _gauge("job_kept_step", "The newest step that is whole in the memory of the nodes."),
    _gauge("job_copied_step", "The newest step that outlives the loss of any one host, by its copies on others."),
    _gauge("job_disk_step", "The newest step of the job's run that its nodes find on the disk."),
    _gauge(
        "job_redone_steps",
        "Steps of earlier rounds that the current or last round did again, where it resumed from kept state.",
    ),
    _gauge("job_disk_failing", "1 if the last step could not be written to the disk, is gone, or ranks differ in it."),
    _gauge("job_pageable_nodes", "Nodes of the round whose saves from a GPU go into memory that is not page-locked."),
    _gauge(
        "job_diverged",
        "1 if ranks of the round have different parameters or optimizer state, though they should be alike.",
    ),
    _gauge(
        "job_laggard_seconds", "How late the worker comes to collectives that all others wait for; 0 if there is none."
    ),
)
"""The metrics of each job."""


class JobsCollector(Collector):
    """Makes the metric families of all jobs."""

    def __init__(self) -> None:
        self.jobs: Sequence[JobFigures] = ()
        """The figures for the next `collect`."""

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families."""
        jobs = self.jobs
        yield _jobs_by_state(jobs)
        for family in FAMILIES:
            yield family.metric_of(jobs)


def _jobs_by_state(jobs: Iterable[JobFigures]) -> Metric:
    counts = Counter(job.state for job in jobs)
    family = GaugeMetricFamily("coordinatord_jobs", "Jobs that are known, by the state of their run.", labels=["state"])
    for state in State:
        family.add_metric([state], counts[state])
    return family
