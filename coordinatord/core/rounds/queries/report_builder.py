"""Builds the report of a failed round: the root cause, its consequences, and what else was seen.

Every node of the job shows it, so a user sees on any terminal why the round failed. `values/root_cause` decides which
failure is the root cause.
"""

from __future__ import annotations

from msgspec.structs import replace

from coordinatord.core.rounds.state.member import Member, MemberState
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.root_cause import WorkerFailure
from coordinatord.hints.same_error import have_same_error
from coordinatord.protocol.fields import CONSEQUENCES_MAX, DURATION_S_MAX
from coordinatord.protocol.messages import Goal, Report, Result, SecondaryFailure, Straggler


def report_on(run: Run, cause: WorkerFailure | None, now: float) -> Report | None:
    """Return the report on the round that is over, with this failure as its cause; None without one."""
    if cause is None:
        return None
    others = [failure for failure in run.evidence.failures.values() if failure.node != cause.node]
    # Workers that were stopped when their own error had ended them count only if it is the same error.
    failed_too = run.evidence.failed_too.values()
    others += [failure for failure in failed_too if have_same_error(failure.failure, cause.failure)]
    consequences = _followers(cause, same_error=True)
    for other in sorted(others, key=lambda each: each.at):
        failure, same = other.failure, have_same_error(other.failure, cause.failure)
        consequences.append(SecondaryFailure(other.node, failure.rank, failure.exit_code, same, failure.left))
        consequences += _followers(other, same_error=same)
    step, stragglers = _stragglers(run)
    return Report(
        round=run.durable.round,
        nodes=len(run.durable.order),
        node=cause.node,
        host=cause.host,
        failure=replace(cause.failure, age_s=_age_s(now - cause.at)),
        consequences=tuple(consequences[:CONSEQUENCES_MAX]),
        consequences_count=len(consequences),
        same_error_count=cause.same_error_count,
        early=cause.early,
        early_output=cause.early_output,
        step=step,
        stragglers=stragglers,
        cause=cause.cause,
        workers=cause.workers,
        excused_by=cause.excused_by,
    )


def _followers(cause: WorkerFailure, *, same_error: bool) -> list[SecondaryFailure]:
    """Return the failures of a node after its first one; `same_error` if that has the same error as the root cause."""
    return [
        SecondaryFailure(cause.node, each.rank, each.exit_code, each.same_error and same_error, each.left)
        for each in cause.failure.followers
    ]


def _stragglers(run: Run) -> tuple[int | None, tuple[Straggler, ...]]:
    """Return the furthest step of the round, and the workers that had not reached it, the furthest behind first."""
    workers = list(run.worker_steps(run.members.values()))
    furthest = max((step for _, _, step in workers), default=None)
    behind = sorted((step, rank, member.node) for member, rank, step in workers if step != furthest)
    return furthest, tuple(Straggler(node, rank, step) for step, rank, node in behind[:CONSEQUENCES_MAX])


def aged_report(report: Report, run: Run, now: float) -> Report:
    """Return the run's report with the age of its failure as of now."""
    failure = report.failure
    return replace(report, failure=replace(failure, age_s=_age_s(failure.age_s + now - run.durable.reported_at)))


def report_for(run: Run, member: Member, goal: Goal, now: float) -> Report | None:
    """Return the report that a node shows: on the last round as it starts the next one, or at a failed end."""
    report = run.durable.report
    if report is None:
        return None
    outcome = member.durable.outcome or run.durable.outcome
    starts = goal is Goal.RUN and member.state is MemberState.ASSIGNED and report.round == run.durable.round - 1
    ends = goal is Goal.EXIT and report.round == run.durable.round
    ends_well = outcome is not None and outcome.result in {Result.SUCCEEDED, Result.LEFT, Result.STOPPED}
    return aged_report(report, run, now) if starts or (ends and not ends_well) else None


def _age_s(age_s: float) -> float:
    return min(max(0.0, age_s), DURATION_S_MAX)
