"""Names the root cause of a failed round in a few words. Pure."""

from __future__ import annotations

from coordinatord.hints.early_ends import left_early
from coordinatord.hints.same_error import shared_by
from coordinatord.protocol.messages import HangKind, Report
from coordinatord.protocol.text import name_ranks


def cause_in_brief(report: Report) -> str:
    """Describe the root cause briefly, as the reason for the next round; the report has the error itself."""
    failure = report.failure
    if failure.hang is HangKind.NETWORK:
        return f"a collective did not complete in round {report.round}"
    if failure.diverged:
        return f"replicas diverged in round {report.round}"
    if left_early(report.node, failure, report.early):
        end = report.early[0]
        return f"rank {end.rank} on node {end.node} exited with 0 too early in round {report.round}"
    if failure.left:
        return f"a collective failed on rank {failure.rank} on node {report.node} in round {report.round}"
    if shared := shared_by(failure, report.same_error_count, report.workers):
        return f"{shared} failed in round {report.round}"
    # There is no pid if the worker was never started, or hung and did not answer.
    subject = f"rank {failure.rank} on node {report.node}" if failure.pid else f"node {report.node}"
    subject = name_ranks(failure.hang_ranks) if failure.hang_ranks else subject
    return f"{subject} {'failed' if failure.hang is None else 'hung'} in round {report.round}"
