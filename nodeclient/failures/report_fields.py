"""The first cause of a failed round, for a machine: the fields of one log line. Pure.

What a person reads of it is in `block`.
"""

from __future__ import annotations

from pathlib import Path

from coordinatord.wire.exits import describe_exit
from coordinatord.wire.messages import Report
from nodeclient.failures.hints import hint


def told(report: Report, log: Path | None = None) -> dict[str, object]:
    """Return all that is known, flat; `log` is what the worker wrote, on its host."""
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
        "stderr_log": log,
        "hint": hint(report),
    }
