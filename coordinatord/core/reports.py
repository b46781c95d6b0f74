"""The first cause of a failed round, as the people at every node are told it, and which failures only followed.

What counts as the first cause is in `verdict`.
"""

from __future__ import annotations

from dataclasses import replace

from coordinatord.core.member import Member, Standing
from coordinatord.core.run import Run
from coordinatord.core.verdict import WorkerFailure
from coordinatord.wire.messages import CONSEQUENCES_MAX, DURATION_S_MAX, Consequence, Goal, Report, Result


def report_on(run: Run, now: float) -> Report | None:
    """Report on the round that is over; None if no worker's own failure ended it."""
    cause = run.verdict.charged
    if cause is None:
        return None
    others = sorted((failure for failure in run.failures.values() if failure is not cause), key=lambda each: each.at)
    consequences = [*_followers(cause)]
    for other in others:
        consequences += [Consequence(other.node, other.failure.rank, other.failure.exit_code), *_followers(other)]
    return Report(
        round=run.round,
        nodes=len(run.order),
        node=cause.node,
        host=cause.host,
        failure=replace(cause.failure, age_s=_age_s(now - cause.at)),
        consequences=tuple(consequences[:CONSEQUENCES_MAX]),
        consequences_count=len(consequences),
    )


def _followers(cause: WorkerFailure) -> list[Consequence]:
    return [Consequence(cause.node, one.rank, one.exit_code) for one in cause.failure.followers]


def current(report: Report, run: Run, now: float) -> Report:
    """Return the run's report with its age as of now."""
    failure = report.failure
    return replace(report, failure=replace(failure, age_s=_age_s(failure.age_s + now - run.reported_at)))


def report_for(run: Run, member: Member, goal: Goal, now: float) -> Report | None:
    """Return what a node is to be told: why the round before its own failed, or the one that was the last."""
    report = run.report
    if report is None:
        return None
    outcome = member.outcome or run.outcome
    starts = goal is Goal.RUN and member.standing is Standing.ASSIGNED and report.round == run.round - 1
    ends = goal is Goal.EXIT and report.round == run.round
    well = outcome is not None and outcome.result in {Result.SUCCEEDED, Result.LEFT, Result.STOPPED}
    return current(report, run, now) if starts or (ends and not well) else None


def _age_s(age_s: float) -> float:
    return min(max(0.0, age_s), DURATION_S_MAX)
