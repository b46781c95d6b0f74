"""The durable part of a run, as plain data: two runs for which this is equal are the same as far as a crash goes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from coordinatord.core.state.member import Member, MemberState
from coordinatord.core.state.run import Run


def durable_jobs(jobs: dict[str, Run]) -> dict[str, Any]:
    """Project all jobs."""
    return {job: durable_run(run) | durable_round(run, run.members.values()) for job, run in jobs.items()}


def durable_run(run: Run) -> dict[str, Any]:
    """Project a run without its nodes; most of one that has ended does not count any more."""
    ended, rounds = run.state.ended, list(run.timeline)
    return {
        "run": (run.job, run.id, run.spec, run.opener),
        "state": (run.state, run.reason, run.outcome),
        "stop asked": run.stop_asked,
        "concluded": run.concluded,
        "restarts used": run.restarts_used,
        "round": None if ended and not rounds else run.round,  # else that of another run, as a node had it
        "repeats": run.repeats,
        "spent": (run.ledger.settled, run.ledger.cause, run.ledger.reports_steps, run.ledger.stepped),
        "rounds": rounds,
        "why": None if ended else (run.cause, run.origin, run.trigger, run.planned_at is not None),
        "lost": [] if ended else [loss.node for loss in run.losses],
    }


def durable_round(run: Run, members: Iterable[Member]) -> dict[str, Any]:
    """Project a run's round and some of its members."""
    # One that was released is forgotten when its session ends, of which there is no record.
    let_go = {member.node for member in run.members_in(MemberState.RELEASED)}
    ended = run.state.ended
    return {
        "order": () if ended else run.order,
        "assignments": {} if ended else dict(run.assignments),
        "missing": set() if ended else set(run.missing) | {node for node in let_go if node in run.assignments},
        "members": {} if ended else {one.node: durable_member(one) for one in members if one.node not in let_go},
    }


def durable_member(member: Member) -> tuple[Any, ...]:
    """Project a member."""
    return member.incarnation, member.offer, member.in_round, member.succeeded


def differences(ours: dict[str, Any], theirs: dict[str, Any], path: str = "") -> list[str]:
    """Return where two projections differ."""
    found = []
    for key in [*ours, *(key for key in theirs if key not in ours)]:
        one, other = ours.get(key), theirs.get(key)
        if isinstance(one, dict) and isinstance(other, dict):
            found += differences(one, other, f"{path}{key}: ")
        elif one != other:
            found.append(f"{path}{key}: {one} in memory, {other} in the store")
    return found
