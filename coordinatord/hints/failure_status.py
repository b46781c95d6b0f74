"""Converts the report of a failed round for the HTTP API and terminals, and adds sentences and the hint. Pure."""

from __future__ import annotations

from functools import lru_cache

from msgspec.structs import asdict

from coordinatord.hints import other_workers
from coordinatord.hints.match import cause_of, hint
from coordinatord.protocol.exit_codes import describe_exit, shell_exit_code
from coordinatord.protocol.http.api import EarlyEndStatus, FailureStatus, OtherFailureStatus, StragglerStatus
from coordinatord.protocol.messages import Failure, Report

KEPT_MAX = 1_000
"""The size of the cache: one failure for each known job."""


@lru_cache(maxsize=KEPT_MAX)
def failure_status(report: Report) -> FailureStatus:
    """Return the status of a failure, cached because each answer about the job has it."""
    failure = report.failure
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
        cause=cause_of(failure),
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
                how=describe_exit(other.exit_code, left=other.left),
                same_error=other.same_error,
            )
            for other in report.consequences
        ),
        consequences_count=report.consequences_count,
        same_error_count=report.same_error_count,
        early=tuple(
            EarlyEndStatus(node=end.node, rank=end.rank, before_s=round(end.before_s, 3)) for end in report.early
        ),
        step=report.step,
        stragglers=tuple(StragglerStatus(**asdict(straggler)) for straggler in report.stragglers),
        log=failure.log or None,
        hint=hint(report) or "",
        before=other_workers.early(report),
        behind=other_workers.stragglers(report),
        then=other_workers.consequences(report),
    )


def _how(failure: Failure) -> str:
    if failure.diverged:
        return "diverged"
    return describe_exit(failure.exit_code, left=failure.left) if failure.hang is None else f"hung: {failure.hang}"
