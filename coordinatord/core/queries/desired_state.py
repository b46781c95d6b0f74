"""What is asked of each node: a table of the run's state and the node's state, and the message made of it."""

from __future__ import annotations

from coordinatord.core.queries.conditions import settled
from coordinatord.core.queries.reasons import Reasons
from coordinatord.core.queries.report_builder import report_for
from coordinatord.core.state.leases import lease_s
from coordinatord.core.state.member import Member, MemberState
from coordinatord.core.state.run import Run, State
from coordinatord.protocol.errors import Table
from coordinatord.protocol.fields import DURATION_S_MAX
from coordinatord.protocol.messages import Desired, Goal, Outcome, Result
from coordinatord.protocol.text import clip

_OUTSIDE = {
    MemberState.READY: Goal.WAIT,
    MemberState.STALE: Goal.STOP,
}
_INSIDE = (
    MemberState.ASSIGNED,
    MemberState.RUNNING,
    MemberState.STOPPING,
    MemberState.STOPPED,
    MemberState.SUCCEEDED,
)

_GOALS: dict[State, dict[MemberState, Goal]] = {
    State.FORMING: _OUTSIDE,
    State.STARTING: _OUTSIDE | dict.fromkeys(_INSIDE, Goal.RUN),
    State.RUNNING: _OUTSIDE | dict.fromkeys(_INSIDE, Goal.RUN),
    State.STOPPING: _OUTSIDE | dict.fromkeys(_INSIDE, Goal.STOP),
    State.SUCCEEDED: dict.fromkeys(MemberState, Goal.EXIT),
    State.FAILED: dict.fromkeys(MemberState, Goal.EXIT),
    State.STOPPED: dict.fromkeys(MemberState, Goal.EXIT),
}
GOALS = Table[tuple[State, MemberState], Goal]("goals of a node")
"""Nodes that cannot be told anything (disconnected, silent) have no goal while the run lives."""
GOALS |= {(state, member): goal for state, row in _GOALS.items() for member, goal in row.items()}


def goal_of(run: Run, member: Member) -> Goal:
    """Return what is asked of a node. Raises `InternalError` for one that cannot be told anything."""
    if member.outcome is not None:
        return Goal.EXIT
    return GOALS[run.state, member.state]


def is_told(run: Run, member: Member) -> bool:
    """Whether a node knows its goal; for mere words that have changed it need not be told at once."""
    sent = member.sent
    if sent is None:
        return False
    goal = goal_of(run, member)
    return (
        sent.goal is goal
        and sent.round == run.round
        and sent.run == run.id
        and sent.planned is _is_planned(run, member, goal)
        and sent.outcome == _outcome(run, member, goal)
    )


def is_current(run: Run, member: Member, heartbeat_s: float) -> bool:
    """Whether a node that runs would hear again, word for word, what it heard last: most heartbeats are answered so.

    To make the same message anew, compare it and pack it would take half of the time that the machine has for one.
    """
    sent = member.sent
    return (
        sent is not None
        and member.state is MemberState.RUNNING  # no wait, which gets shorter, and no report
        and sent.report is None
        and is_told(run, member)
        and sent.heartbeat_s == heartbeat_s
        and sent.outage_grace_s == run.policy.outage_grace_s
        and sent.lease_s == lease_s(member, run.policy, heartbeat_s)
        and (sent.reason == run.reason or sent.reason == clip(run.reason))  # mostly there is nothing to clip
    )


def desired(run: Run, member: Member, heartbeat_s: float, now: float) -> Desired:
    """Put into words and numbers what is asked of a node, and grant it this heartbeat."""
    goal = goal_of(run, member)
    until = _wait_until(run, member) if goal is Goal.WAIT else None
    return Desired(
        run=run.id,
        round=run.round,
        goal=goal,
        reason=clip(_reason(run, member)),
        wait_s=None if until is None else min(max(0.0, until - now), DURATION_S_MAX),
        heartbeat_s=heartbeat_s,
        lease_s=lease_s(member, run.policy, heartbeat_s),
        outage_grace_s=run.policy.outage_grace_s,
        planned=_is_planned(run, member, goal),
        assignment=run.assignments[member.node] if goal is Goal.RUN else None,
        outcome=_outcome(run, member, goal),
        report=report_for(run, member, goal, now),
        remark="" if run.cause or goal is Goal.EXIT else run.remark,
    )


def _is_planned(run: Run, member: Member, goal: Goal) -> bool:
    """Whether workers that a node still has get the time to save their state: nothing has gone wrong."""
    outcome = _outcome(run, member, goal)
    if outcome is not None:
        return outcome.result in {Result.LEFT, Result.STOPPED}
    return goal is Goal.STOP and run.state is State.STOPPING and run.planned_at is not None


def _outcome(run: Run, member: Member, goal: Goal) -> Outcome | None:
    return (member.outcome or run.outcome) if goal is Goal.EXIT else None


def _wait_until(run: Run, member: Member) -> float | None:
    """Return when the waiting ends at the latest, with a round or in vain; None if it may go on for ever."""
    if run.state is not State.FORMING:
        return None
    ends = (run.give_up.get(member.node), settled(run))
    return min((end for end in ends if end is not None), default=None)


def _reason(run: Run, member: Member) -> str:
    if member.state is MemberState.READY and run.state in {State.STARTING, State.RUNNING}:
        if run.round_size >= run.spec.nodes_max:
            return f"spare: round {run.round} has its maximum of nodes, {run.spec.nodes_max}"
        return f"round {run.round} is running; the next one will include this node"
    if member.state is MemberState.STALE:
        if member.observed.run != run.id:
            return "its workers are of a run that this coordinator does not know, or not any more: was its state lost?"
        return "its workers are of a round that is over for this node"
    return Reasons(run).waiting_for if run.state is State.FORMING else run.reason
