"""What is asked of each node: a table of the run's state and the node's standing, and the message made of it."""

from __future__ import annotations

from coordinatord.core.conditions import settled
from coordinatord.core.leases import lease_s
from coordinatord.core.member import Member, Standing
from coordinatord.core.reports import report_for
from coordinatord.core.run import Run, State
from coordinatord.core.words import Words
from coordinatord.wire.messages import Desired, Goal, clip

_OUTSIDE = {
    Standing.READY: Goal.WAIT,
    Standing.STRAGGLING: Goal.STOP,
}
_INSIDE = (
    Standing.ASSIGNED,
    Standing.RUNNING,
    Standing.STOPPING,
    Standing.HALTED,
    Standing.SUCCEEDED,
)

GOALS: dict[State, dict[Standing, Goal]] = {
    State.FORMING: _OUTSIDE,
    State.STARTING: _OUTSIDE | dict.fromkeys(_INSIDE, Goal.RUN),
    State.RUNNING: _OUTSIDE | dict.fromkeys(_INSIDE, Goal.RUN),
    State.STOPPING: _OUTSIDE | dict.fromkeys(_INSIDE, Goal.STOP),
    State.SUCCEEDED: dict.fromkeys(Standing, Goal.EXIT),
    State.FAILED: dict.fromkeys(Standing, Goal.EXIT),
}
"""Nodes that cannot be told anything (absent, silent) have no goal while the run lives."""


def goal_of(run: Run, member: Member) -> Goal:
    """Return what is asked of a node. Raises `KeyError` for one that cannot be told anything."""
    if member.outcome is not None:
        return Goal.EXIT
    return GOALS[run.state][member.standing]


def desired(run: Run, member: Member, nodes: int, now: float) -> Desired:
    """Put into words and numbers what is asked of a node; `nodes` of all jobs share the heartbeats."""
    goal = goal_of(run, member)
    heartbeat_s = run.policy.heartbeat_for(nodes)
    until = _wait_until(run, member) if goal is Goal.WAIT else None
    return Desired(
        run=run.id,
        round=run.round,
        goal=goal,
        reason=clip(_reason(run, member)),
        wait_s=None if until is None else max(0.0, until - now),
        heartbeat_s=heartbeat_s,
        lease_s=lease_s(member, run.policy, heartbeat_s),
        outage_grace_s=run.policy.outage_grace_s,
        planned=goal is Goal.STOP and run.state is State.STOPPING and run.planned_at is not None,
        assignment=run.assignments[member.node] if goal is Goal.RUN else None,
        outcome=(member.outcome or run.outcome) if goal is Goal.EXIT else None,
        report=report_for(run, member, goal, now),
    )


def _wait_until(run: Run, member: Member) -> float | None:
    """Return when the waiting ends at the latest, with a round or in vain; None if it may go on for ever."""
    if run.state is not State.FORMING:
        return None
    ends = (run.give_up.get(member.node), settled(run))
    return min((end for end in ends if end is not None), default=None)


def _reason(run: Run, member: Member) -> str:
    if member.standing is Standing.READY and run.state in {State.STARTING, State.RUNNING}:
        if run.round_size >= run.spec.nodes_max:
            return f"spare: round {run.round} has its maximum of nodes, {run.spec.nodes_max}"
        return f"round {run.round} is running; the next one will include this node"
    if member.standing is Standing.STRAGGLING:
        if member.observed.run != run.id:
            return "its workers are of a run that this coordinator does not know, or not any more: was its state lost?"
        return "its workers are of a round that is over for this node"
    return Words(run).waiting_for if run.state is State.FORMING else run.reason
