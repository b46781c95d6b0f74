"""The state of jobs as plain data for `GET /v1/jobs` and `nodeclient status`: a pure read."""

from __future__ import annotations

from itertools import islice
from typing import Any

from coordinatord.core.queries.reasons import NAMES_MAX, Reasons
from coordinatord.core.queries.report_builder import current
from coordinatord.core.queries.time_attribution import spent
from coordinatord.core.state.cluster import Cluster
from coordinatord.core.state.member import Member, MemberState
from coordinatord.core.state.run import Health, Run, State
from coordinatord.core.values.round_history import Round
from coordinatord.core.values.time_ledger import Activity, Spent
from coordinatord.hints.other_workers import in_words
from coordinatord.protocol.exit_codes import describe_exit, shell_exit_code
from coordinatord.protocol.messages import Launcher, Phase, Report

SPARE = "spare"
"""The state of a node that the round has no place for."""


def job_view(run: Run, now: float, trouble: str | None) -> dict[str, Any]:
    """Show the live or last run of a job; `trouble` is why the coordinator cannot decide anything, if so."""
    ready = _ready(run)
    return {**head_view(run, now, trouble), "nodes": [_node_view(run, member, ready, now) for member in _in_order(run)]}


def whole_view(run: Run, now: float, trouble: str | None) -> dict[str, Any]:
    """Show a job with its last rounds as well, for who looks at this one alone."""
    return {**job_view(run, now, trouble), "rounds": rounds_view(run, now)}


def head_view(run: Run, now: float, trouble: str | None) -> dict[str, Any]:
    """Show a job without its nodes, which costs the same whether it has one or ten thousand."""
    in_round = run.state in {State.STARTING, State.RUNNING, State.STOPPING}
    return {
        "job": run.job,
        "run": run.id,
        "state": str(run.state),
        "health": str(run.health),
        "reason": Reasons(run).situation if trouble is None else f"nothing can be decided, {trouble}; {run.reason}",
        "round": run.round,
        **_time_view(run, now),
        "world_size": sum(member.offer.workers for member in run.inside) if in_round else 0,
        "progress": {"step": run.step, "steps_per_s": pace(run, now)},
        "restarts": {"used": run.restarts_used, "max": _max_restarts(run)},
        "spares": run.count(MemberState.READY) if _ready(run) == SPARE else 0,
        "missing": _missing_view(run),
        "failure": None
        if run.report is None
        else {**_failure_view(current(run.report, run, now)), **in_words(run.report)},
    }


def drained_view(cluster: Cluster) -> list[dict[str, str]]:
    """Show which names operators keep out of all jobs, and why."""
    return [{"node": name, "reason": reason} for name, reason in sorted(cluster.drained.items())]


def rounds_view(run: Run, now: float) -> list[dict[str, Any]]:
    """Show the last rounds of a run, oldest first, with what the time of each went to since the one before it ended."""
    so_far = spent(run, now)
    since_end_s = max(0.0, now - run.ledger.entered_at) if run.state.ended else 0.0
    return [_round_view(one, so_far, so_far.total + since_end_s) for one in run.timeline]


def _round_view(one: Round, so_far: Spent, clock_s: float) -> dict[str, Any]:
    def ago(at: float | None) -> float | None:
        return None if at is None else round(max(0.0, clock_s - at), 3)

    return {
        "round": one.number,
        "nodes": one.nodes,
        "workers": one.workers,
        "formed": one.formed,
        "stopped": one.stopped,
        "ended": one.ended,
        "planned": one.planned,
        "charged": one.charged,
        "formed_s": ago(one.formed_at),
        "running_s": ago(one.running_at),
        "stopped_s": ago(one.stopped_at),
        "ended_s": ago(one.ended_at),
        "seconds": _rounded((one.after or so_far).minus(one.before)),
    }


def _time_view(run: Run, now: float) -> dict[str, Any]:
    seconds = _rounded(spent(run, now))
    trained = seconds[Activity.TRAINING]
    total = round(sum(seconds.values()), 3)  # what is shown adds up to the last digit
    return {
        "opened_s": total,
        "state_s": round(max(0.0, now - run.ledger.entered_at), 3),
        "ledger": {
            "seconds": seconds,
            "total": total,
            "goodput": round(trained / total, 6) if trained else None,  # not known where no step was ever reported
        },
    }


def _rounded(time: Spent) -> dict[str, float]:
    return {cause: round(seconds, 3) for cause, seconds in time.by_cause().items()}


def _missing_view(run: Run) -> dict[str, Any]:
    missing = {} if run.state.ended else run.missing
    return {"count": len(missing), "nodes": list(islice(missing, NAMES_MAX))}


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
            {
                "node": other.node,
                "rank": other.rank,
                "exit_code": shell_exit_code(other.exit_code),
                "how": describe_exit(other.exit_code),
                "same_error": other.same_error,
            }
            for other in report.consequences
        ],
        "consequences_count": report.consequences_count,
        "same_error_count": report.same_error_count,
        "early": [{"node": one.node, "rank": one.rank, "before_s": round(one.before_s, 3)} for one in report.early],
        "step": report.step,
        "stragglers": [{"node": one.node, "rank": one.rank, "step": one.step} for one in report.stragglers],
        "log": failure.log or None,
    }


def _in_order(run: Run) -> list[Member]:
    place = {node: index for index, node in enumerate(run.order)}
    return sorted(run.members.values(), key=lambda m: (not m.in_round, place.get(m.node, len(place)), m.arrived_at))


def _node_view(run: Run, member: Member, ready: str, now: float) -> dict[str, Any]:
    part = run.assignments[member.node] if member.in_round else None
    workers = member.offer.workers
    return {
        "node": member.node,
        "host": member.offer.host,
        "address": member.offer.advertise_address or member.peer_address,
        "state": ready if member.state is MemberState.READY else str(member.state),
        "reason": _reason(member),
        "drained": bool(member.drained),
        "group_rank": None if part is None else part.group_rank,
        "ranks": [] if part is None else list(range(part.first_rank, part.first_rank + workers)),
        "last_seen_s": round(max(0.0, now - member.heard_at), 3),
        "release": member.release or None,
        "protocol": member.protocol,
        **_steps_view(run, member, now),
    }


def _steps_view(run: Run, member: Member, now: float) -> dict[str, Any]:
    observed = member.observed
    here = (observed.run, observed.round) == (run.id, run.round)
    age_s = observed.step_age_s if here and observed.steps else None
    return {
        "steps": list(observed.steps) if here else [],
        "step_age_s": None if age_s is None else round(max(0.0, now - member.heard_at) + age_s, 3),
    }


def pace(run: Run, now: float) -> float | None:
    """Return how many steps a second the round does; None where it does none, or one of its workers stands."""
    steps_per_s = run.progress.steps_per_s
    if run.state is not State.RUNNING or run.health is not Health.WELL or steps_per_s is None:
        return None
    laggard = run.laggard
    stands = laggard is not None and laggard.lag > 1 and now - laggard.stepped_at >= run.progress.patience_s
    return None if stands else round(steps_per_s, 6)


def _ready(run: Run) -> str:
    """Name the state of the nodes that are ready, which is the same for all of them."""
    if run.state not in {State.STARTING, State.RUNNING}:
        return str(MemberState.READY)
    return SPARE if run.round_size >= run.spec.nodes_max else "arrived"


def _reason(member: Member) -> str:
    if member.outcome is not None:
        return member.outcome.summary
    if member.drained:
        return f"leaving: {member.drained}"
    if member.observed.leaving:
        return "leaving"
    if member.session is None:
        return "disconnected"
    if member.state is MemberState.ASSIGNED:
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
