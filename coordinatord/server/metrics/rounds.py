"""Counts ended rounds and lost nodes, and measures how long rounds take, from durable records.

The counts of a job are dropped with the job. Each record about a round carries a `Spent`: how many seconds of the run
went to each activity so far. A duration is the difference of two of them, so an outage of the coordinator between the
records does not change it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from prometheus_client import Histogram

from coordinatord.core.rounds.queries import conditions
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.transitions.table import ROWS
from coordinatord.core.rounds.values.records import (
    JobForgotten,
    NodeLost,
    RoundEnded,
    RoundFormed,
    RoundStarted,
    RoundStopped,
    RunEnded,
    RunOpened,
    TrainingBegan,
)
from coordinatord.core.rounds.values.time_ledger import Activity, Spent
from coordinatord.protocol.messages import Cause, ColdCause, Result
from coordinatord.store.interface import Entry

WORKER_FAILED = conditions.worker_failed.__name__
HUNG = conditions.hung.__name__
DIVERGED = conditions.diverged.__name__
NODE_LOST = conditions.node_lost.__name__
"""The reasons between which the verdict at the end of a round decides."""

OTHER = "other"
"""The label of an unknown reason in a record of another version."""

_CONDITIONS = dict.fromkeys(
    row.when.__name__
    for row in ROWS
    if row.source.at_work and not row.target.at_work and row.when is not conditions.success_unwritten
)
"""The conditions in the table of a run's transitions at which a round stops its work, each once and in order. A round
that stops because of `success_unwritten`, to write its last step, counts as `all_succeeded`, which follows."""

REASONS = (*_CONDITIONS, OTHER)
"""Every label of a round's end: the names of these conditions, and `OTHER`."""


def known_reason(condition: str) -> str:
    """Return the condition of a record, or `OTHER` if this version does not know it."""
    return condition if condition in _CONDITIONS else OTHER


FORMATION_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 60.0)
"""Upper bounds in seconds: a round of survivors forms at once. Others wait for one more node: 2 s after each arrival,
and up to 10 s."""

START_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 60.0, 300.0)
"""Upper bounds in seconds, from warm workers to an import of torch and a large checkpoint from slow file systems."""

RECOVERY_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 300.0, 1_800.0)
"""Upper bounds in seconds: a warm restart, a lost lease of 5 s, a planned stop of 30 s, and a wait for a new host."""


@dataclass(slots=True)
class JobTally:
    """The counts of one job, and the moments from which the next durations are measured."""

    rounds: Counter[str] = field(default_factory=Counter)
    """Ended rounds, by reason."""
    failures: Counter[Cause] = field(default_factory=Counter)
    """Rounds that a worker's failure ended, by the class of its cause."""
    nodes_lost: int = 0
    cold: Counter[ColdCause] = field(default_factory=Counter)
    """Rounds that started with cold workers in spite of `--preload`, by the first cause."""

    in_round: bool = False
    """Whether the job has a present round."""
    stop_reason: str | None = None
    """Why the present round is being stopped; None if it is not."""
    round_ended: Spent | None = None
    """The time spent when the last round ended, or the run was opened; None if no such record was counted."""
    round_formed: Spent | None = None
    """The time spent when the present round was formed; None once its start was measured."""
    training_began: Spent | None = None
    """The time spent when training last began; None before that."""
    stop_planned: bool | None = None
    """Whether the first stop since training last began was planned; None before it. Further stops until training begins
    again belong to the same recovery."""

    shown: dict[str, float] = field(default_factory=dict)
    """The seconds by activity that the last scrape has shown."""
    shown_run: str = ""
    """The id of the run whose seconds `shown` has."""


class RoundMeter:
    """Counts records and measures durations, as one of the driver's watchers."""

    def __init__(self, restored: Iterable[Run]) -> None:
        """Begin with the runs that were restored at the start: no new record tells how their present rounds began."""
        self.tallies: dict[str, JobTally] = {}
        self.formation = Histogram(
            "coordinatord_round_formation_seconds",
            "How long a round took to form once enough nodes were ready.",
            buckets=FORMATION_BUCKETS,
            registry=None,
        )
        self.start = Histogram(
            "coordinatord_round_start_seconds",
            "From the formation of a round until its workers trained.",
            buckets=START_BUCKETS,
            registry=None,
        )
        self.recovery = Histogram(
            "coordinatord_recovery_seconds",
            "From the break of a round, or its planned stop, until workers trained again.",
            ["planned"],
            buckets=RECOVERY_BUCKETS,
            registry=None,
        )
        for planned in (False, True):
            self._recovery(planned=planned)  # so that both are exported from the start, as zeros
        for run in restored:
            self.tallies[run.job] = _restored(run)

    def on_records(self, entries: Sequence[Entry]) -> None:
        """Count records, and measure durations."""
        for record in (entry.record for entry in entries):
            match record:
                case JobForgotten():
                    self.tallies.pop(record.job, None)
                case RunOpened():
                    tally = self.tally(record.job)
                    tally.round_ended, tally.round_formed = Spent(), None
                    tally.training_began = tally.stop_planned = None
                case NodeLost():
                    self.tally(record.job).nodes_lost += 1
                case RoundFormed():
                    self._form(self.tally(record.job), record)
                case RoundStarted() | TrainingBegan():
                    self._start(self.tally(record.job), record)
                case RoundStopped():
                    tally = self.tally(record.job)
                    tally.stop_reason = known_reason(record.condition)
                    tally.stop_planned = record.planned if tally.stop_planned is None else tally.stop_planned
                case RoundEnded() | RunEnded():
                    _end(self.tally(record.job), record)

    def tally(self, job: str) -> JobTally:
        """Return the counts of a job."""
        return self.tallies.setdefault(job, JobTally())

    def _form(self, tally: JobTally, record: RoundFormed) -> None:
        if tally.round_ended is not None:
            self.formation.observe(record.spent.minus(tally.round_ended).rendezvous)
        tally.in_round, tally.round_formed, tally.stop_reason = True, record.spent, None

    def _start(self, tally: JobTally, record: RoundStarted | TrainingBegan) -> None:
        if isinstance(record, RoundStarted):
            if record.begun is not None and record.begun.why_cold is not None:
                tally.cold[record.begun.why_cold.cause] += 1
            if record.steps_awaited:
                return  # training begins with the first step, of which a `TrainingBegan` tells
        if tally.round_formed is not None:
            self.start.observe(record.spent.minus(tally.round_formed).starting)
            tally.round_formed = None  # a `TrainingBegan` may follow, if workers begin to report steps later
        if tally.training_began is not None and tally.stop_planned is not None:
            # The time without a round at work. While its nodes are silent, nobody knows whether a round is at work.
            since = record.spent.minus(tally.training_began)
            self._recovery(planned=tally.stop_planned).observe(since.total - since.at_work - since.silent)
        tally.training_began, tally.stop_planned = record.spent, None

    def _recovery(self, *, planned: bool) -> Histogram:
        return self.recovery.labels(str(planned).lower())


def _restored(run: Run) -> JobTally:
    tally = JobTally()
    tally.in_round = run.durable.state in {State.STARTING, State.RUNNING, State.STOPPING}
    if run.durable.state is State.STOPPING:
        tally.stop_reason = known_reason(run.durable.stop_reason.condition)
    if run.durable.ledger.activity is Activity.TRAINING:
        tally.training_began = run.durable.ledger.settled
    return tally


def _end(tally: JobTally, record: RoundEnded | RunEnded) -> None:
    if record.report is not None:
        tally.failures[record.report.cause] += 1
    if tally.in_round:
        tally.rounds[_reason_of(tally, record)] += 1
    tally.in_round, tally.stop_reason, tally.round_ended = False, None, record.spent


def _reason_of(tally: JobTally, record: RoundEnded | RunEnded) -> str:
    """Return why a round ended: by the verdict at its end, which may differ from the reason of the stop.

    A report means that the verdict blames a worker. Without a report, workers that failed or hung did so only because
    a node was lost.
    """
    if isinstance(record, RunEnded) and record.outcome.result is Result.SUCCEEDED:
        return known_reason(record.condition)
    if record.report is not None:
        failure = record.report.failure
        return DIVERGED if failure.diverged else WORKER_FAILED if failure.hang is None else HUNG
    if tally.stop_reason is None:  # the round was not stopped, so it ended with its run
        return known_reason(record.condition) if isinstance(record, RunEnded) else OTHER
    return NODE_LOST if tally.stop_reason in {WORKER_FAILED, HUNG, DIVERGED} else tally.stop_reason
