"""Describes a failed round for people, in the HTTP API and in terminals, by the report of its root cause. Pure.

It adds the hint (what to do about it), and sentences on other workers: which failed too, ended before, or lagged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from msgspec.structs import asdict

from coordinatord.hints.early_ends import first_of, left_early
from coordinatord.hints.match import CACHED_MAX, hint, rule_for
from coordinatord.hints.same_error import shared_by
from coordinatord.protocol.exit_codes import describe_exit, shell_exit_code
from coordinatord.protocol.http.api import EarlyEndStatus, FailureStatus, OtherFailureStatus, StragglerStatus
from coordinatord.protocol.messages import Failure, Report, SecondaryFailure


@lru_cache(maxsize=CACHED_MAX)
def failure_status(report: Report) -> FailureStatus:
    """Return the status of a failure. It is cached, because each answer about the job has it until the next failure."""
    failure, ended_early = report.failure, left_early(report.node, report.failure, report.early)
    shared = "" if ended_early else shared_by(failure, report.same_error_count, report.workers)
    has_named_all = shared and report.same_error_count + 1 == report.workers
    return FailureStatus(
        round=report.round,
        nodes=report.nodes,
        node=report.node,
        host=report.host,
        rank=failure.rank,
        local_rank=failure.local_rank,
        pid=failure.pid or None,
        exit_code=shell_exit_code(failure.exit_code),
        how=_how(failure),
        cause=report.cause,
        hang=failure.hang or "",
        hang_ranks=failure.hang_ranks,
        message=failure.message,
        error=failure.error,
        last_lines=failure.last_lines,
        age_s=round(failure.age_s, 3),
        consequences=tuple(
            OtherFailureStatus(
                node=other.node,
                rank=other.rank,
                exit_code=shell_exit_code(other.exit_code),
                how=_how_other(other),
                same_error=other.same_error,
            )
            for other in report.consequences
        ),
        consequences_count=report.consequences_count,
        same_error_count=report.same_error_count,
        early=tuple(
            EarlyEndStatus(node=end.node, rank=end.rank, before_s=round(end.before_s, 3)) for end in report.early
        ),
        early_lines=report.early_output.lines if report.early_output else None,
        early_log=(report.early_output.log or None) if report.early_output else None,
        step=report.step,
        stragglers=tuple(StragglerStatus(**asdict(straggler)) for straggler in report.stragglers),
        log=failure.log or None,
        hint=hint(report) or "",
        left_early=ended_early,
        shared_by=shared,
        before=_early(report),
        behind=_stragglers(report),
        then="" if has_named_all else _consequences(report),
        excused_by=report.excused_by,
    )


def _how(failure: Failure) -> str:
    if failure.diverged:
        return "diverged"
    return describe_exit(failure.exit_code, left=failure.left) if failure.hang is None else f"hung: {failure.hang}"


def _how_other(other: SecondaryFailure) -> str:
    return describe_exit(other.exit_code, left=other.left)


def _consequences(report: Report) -> str:
    """Return which workers failed too, with the same error or in consequence; empty if none did."""
    number, same = report.consequences_count, report.same_error_count
    if not number:
        return ""
    others = "another worker" if number == 1 else f"{number} other workers"
    others = f"{others} {_did(report.consequences, number)}"
    if not same:
        return f"{others} in consequence: {_named(report.consequences, number)}"
    if same == number:
        return f"{others} with the same error: {_named(report.consequences, number)}"
    with_same_error = [failure for failure in report.consequences if failure.same_error]
    in_consequence = [failure for failure in report.consequences if not failure.same_error]
    return (
        f"{others}, {same} of them with the same error: {_named(with_same_error, same)}; "
        f"and in consequence: {_named(in_consequence, number - same)}"
    )


def _early(report: Report) -> str:
    """Return which workers had ended with 0 by then; empty if none had."""
    ends = [f"rank {end.rank} on {end.node} had ended with 0, {_age(end.before_s)} before" for end in report.early]
    return first_of(ends)


def _stragglers(report: Report) -> str:
    """Return which workers were behind, if the failed one waited for others; empty if none was."""
    cause = rule_for(report)
    if cause is None or not cause.waits or not report.stragglers:
        return ""
    named = [f"rank {straggler.rank} on {straggler.node} at step {straggler.step}" for straggler in report.stragglers]
    return f"{first_of(named)}, while others had reported step {report.step}"


def _did(failures: Sequence[SecondaryFailure], number: int) -> str:
    """Say whether `number` workers failed or left the round, by those of them that the report names."""
    left = sum(failure.left for failure in failures)
    return "failed" if not left else "left the round" if left == number else "failed or left the round"


def _named(failures: Iterable[SecondaryFailure], number: int) -> str:
    """Name the workers of these failures, and count the rest of `number`."""
    names = [
        f"rank {each.rank} on {each.node}{'' if each.same_error else f' ({_how_other(each)})'}" for each in failures
    ]
    more = number - len(names)
    return ", ".join([*names, f"{more} more"] if more > 0 else names)


def _age(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"  # noqa: PLR2004  # two digits
