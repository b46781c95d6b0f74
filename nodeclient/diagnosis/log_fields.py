"""The first cause of a failed round, for a machine: the fields of one log line. Pure.

What a person reads of it is in `block`.
"""

from __future__ import annotations

from coordinatord.hints import other_workers
from coordinatord.hints.match import hint
from coordinatord.protocol.exit_codes import describe_exit
from coordinatord.protocol.messages import Report


def told(report: Report) -> dict[str, object]:
    """Return all that is known, flat."""
    failure = report.failure
    return {
        "round": report.round,
        "failed_node": report.node,
        "failed_host": report.host,
        "rank": failure.rank,
        "local_rank": failure.local_rank,
        "pid": failure.pid or None,
        "exit_code": failure.exit_code,
        "how": describe_exit(failure.exit_code) if failure.pid else "not started",
        "age_s": failure.age_s,
        "because": failure.message,
        "error": failure.error,
        "last_lines": list(failure.last_lines) or None,
        "consequences": [f"rank {other.rank} on {other.node}" for other in report.consequences] or None,
        "consequences_count": report.consequences_count,
        "same_error_count": report.same_error_count,
        "ended_early": other_workers.early(report),
        "behind": other_workers.stragglers(report),
        "stderr_log": failure.log or None,
        "hint": hint(report),
    }
