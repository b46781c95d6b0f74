"""The state of jobs as plain data for `GET /v1/jobs` and `nodeclient status`: a pure read."""

from __future__ import annotations

from typing import Any

from coordinatord.core.member import Member, Standing
from coordinatord.core.reports import current
from coordinatord.core.run import Run, State
from coordinatord.core.words import Words
from coordinatord.wire.exits import describe_exit, shell_exit_code
from coordinatord.wire.messages import Launcher, Phase, Report


def job_view(run: Run, now: float, trouble: str | None) -> dict[str, Any]:
    """Show the live or last run of a job; `trouble` is why the coordinator cannot decide anything, if so."""
    in_round = run.state in {State.STARTING, State.RUNNING, State.STOPPING}
    return {
        "job": run.job,
        "run": run.id,
        "state": str(run.state),
        "reason": Words(run).situation if trouble is None else f"nothing can be decided, {trouble}; {run.reason}",
        "round": run.round,
        "world_size": sum(member.offer.workers for member in run.inside) if in_round else 0,
        "restarts": {"used": run.restarts_used, "max": _max_restarts(run)},
        "failure": None if run.report is None else _failure_view(current(run.report, run, now)),
        "nodes": [_node_view(run, member, now) for member in _in_order(run)],
    }


def _max_restarts(run: Run) -> int | None:
    """Return the budget; None where torchrun's agents count for themselves."""
    return None if run.spec.launcher is Launcher.TORCHRUN else run.spec.max_restarts


def _failure_view(report: Report) -> dict[str, Any]:
    failure = report.failure
    return {
        "round": report.round,
        "nodes": report.nodes,
        "node": report.node,
        "host": report.host,
        "rank": failure.rank,
        "local_rank": failure.local_rank,
        "pid": failure.pid or None,
        "exit_code": shell_exit_code(failure.exit_code),
        "how": describe_exit(failure.exit_code),
        "message": failure.message,
        "error": failure.error,
        "last_lines": list(failure.last_lines),
        "age_s": round(failure.age_s, 3),
        "consequences": [
            {"node": other.node, "rank": other.rank, "exit_code": shell_exit_code(other.exit_code)}
            for other in report.consequences
        ],
        "consequences_count": report.consequences_count,
    }


def _in_order(run: Run) -> list[Member]:
    place = {node: index for index, node in enumerate(run.order)}
    return sorted(run.members.values(), key=lambda m: (not m.in_round, place.get(m.node, len(place)), m.arrived_at))


def _node_view(run: Run, member: Member, now: float) -> dict[str, Any]:
    part = run.assignments[member.node] if member.in_round else None
    workers = member.offer.workers
    return {
        "node": member.node,
        "host": member.offer.host,
        "address": member.offer.advertise_address or member.peer_address,
        "state": _state(run, member),
        "reason": _reason(member),
        "group_rank": None if part is None else part.group_rank,
        "ranks": [] if part is None else list(range(part.first_rank, part.first_rank + workers)),
        "last_seen_s": round(max(0.0, now - member.heard_at), 3),
    }


def _state(run: Run, member: Member) -> str:
    if member.standing is Standing.READY and run.state in {State.STARTING, State.RUNNING}:
        return "spare" if run.round_size >= run.spec.nodes_max else "arrived"
    return str(member.standing)


def _reason(member: Member) -> str:
    if member.outcome is not None:
        return member.outcome.summary
    if member.observed.leaving:
        return "leaving"
    if member.session is None:
        return "disconnected"
    if member.standing is Standing.ASSIGNED:
        return "its workers are to start"
    return _WORKERS[member.observed.phase]


_WORKERS = {
    Phase.IDLE: "has no workers",
    Phase.STARTING: "its workers are starting",
    Phase.RUNNING: "its workers are running",
    Phase.STOPPING: "its workers are ending",
    Phase.STOPPED: "its workers have ended",
    Phase.SUCCEEDED: "its workers have succeeded",
    Phase.FAILED: "a worker failed",
}
