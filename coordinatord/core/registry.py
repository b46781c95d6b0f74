"""Opens and drops the runs of all jobs, and keeps the time at which each run's table is to be checked next.

Each execution of a job is a run of its own. A run that has ended stays until its members have their outcome.
"""

from __future__ import annotations

from coordinatord.core.rounds.queries import admission
from coordinatord.core.rounds.queries.reasons import Reasons
from coordinatord.core.rounds.state.cluster import Cluster
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.transitions.decision import Decision
from coordinatord.core.rounds.values.deadline_heap import DeadlineHeap
from coordinatord.core.rounds.values.records import JobForgotten, RunOpened
from coordinatord.protocol.fields import SENTENCE_MAX
from coordinatord.protocol.messages import Join
from coordinatord.protocol.text import clip


class Registry:
    """The runs that the coordinator still has something to do for, and the deadlines of their tables."""

    def __init__(self, cluster: Cluster, epoch: str) -> None:
        """Begin without runs; `epoch` makes the run ids of this life of the daemon differ from those of all others."""
        self._cluster = cluster
        self._epoch = epoch
        self._opened = 0
        """How many runs this life of the daemon has opened."""
        self.runs: dict[str, Run] = {}
        """Runs by their id: the last one of each job, ended or not, and older ones as long as they have members."""
        self.deadlines = DeadlineHeap[str]()
        """When to check the table of a job's last run and the join timeouts of its nodes; earlier runs have ended."""

    def open(self, join: Join, store_error: str | None, decision: Decision) -> Run:
        """Open a run for its first node; `store_error` is why nothing can be recorded, if so. Raises `RefusedError`."""
        admission.check_not_degraded(store_error)
        jobs = self._cluster.jobs
        old = jobs.get(join.job)
        if old is None:
            self._make_room(decision)
        self._opened += 1
        run_id = f"{self._epoch}-{self._opened}"
        follows = ""
        if old is not None and old.durable.concluded:
            follows = Reasons(old).followed_by_run(run_id, decision.now)
        reason = f"opened by node {join.node}" + (f"; {follows}" if follows else "")
        decision.record(RunOpened(join.job, run_id, reason, join.node, join.spec))
        if old is not None:
            self.drop_if_over(old)
        run = jobs[join.job]  # the new one: the record has just opened it
        if old is not None and old.durable.state is State.SUCCEEDED:
            run.remark = clip(follows, SENTENCE_MAX)  # perhaps it was started again by mistake
        self.runs[run_id] = run
        return run

    def _make_room(self, decision: Decision) -> None:
        """Forget the oldest ended job if there are too many jobs. Raises `RefusedError` if all of them are live."""
        jobs = self._cluster.jobs
        if len(jobs) < self._cluster.policy.jobs_max:
            return
        ended = next((run for run in jobs.values() if run.durable.state.ended), None)
        if ended is None:
            raise admission.too_many_jobs(self._cluster.policy.jobs_max)
        decision.record(JobForgotten(ended.job, ended.id, "it had ended, and another job needed its place"))
        self.drop_if_over(ended)

    def drop_if_over(self, run: Run) -> None:
        """Drop a run if it has no members and is not its job's last one; drop its deadline if the job is forgotten."""
        current = self._cluster.jobs.get(run.job)
        if current is None:
            self.deadlines.discard(run.job)
        if not run.members and current is not run:
            self.runs.pop(run.id, None)

    def plan(self, run: Run, row_due: float | None) -> None:
        """Set when the run needs a `Tick` next: when a row of its table is due, or a join timeout expires."""
        dues = [due for due in (row_due, run.gathering.join_timeouts.first) if due is not None]
        if dues:
            self.deadlines.set(run.job, min(dues))
        else:
            self.deadlines.discard(run.job)
