"""Makes the message `Desired` to a node: its goal, by the states of the run and of the node, and what goes with it.

A message has the whole desired state, so a lost one needs no repetition. A change of a field that is marked `AtOnce` is
sent at once, and one of the others with the answer to the next heartbeat.
"""

from __future__ import annotations

from typing import Any

from coordinatord.core.rounds.queries.conditions import awaited_checkpoint, settled
from coordinatord.core.rounds.queries.past_round import aged_report
from coordinatord.core.rounds.queries.reasons import Reasons
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import IN_ROUND, Member, MemberState
from coordinatord.core.rounds.state.run import Run
from coordinatord.protocol.errors import CompleteMap
from coordinatord.protocol.fields import DURATION_S_MAX, SENTENCE_MAX
from coordinatord.protocol.messages import Desired, Goal, Outcome, Report, Result, ScaleUp
from coordinatord.protocol.text import clip

_OUTSIDE = {
    MemberState.PREPARING: Goal.WAIT,
    MemberState.READY: Goal.WAIT,
    MemberState.QUARANTINED: Goal.WAIT,
    MemberState.HANDING_OVER: Goal.WAIT,
    MemberState.STALE: Goal.STOP,
}
_INSIDE = tuple(state for state in IN_ROUND if state is not MemberState.SILENT)

_GOALS: dict[State, dict[MemberState, Goal]] = {
    State.FORMING: _OUTSIDE,
    State.STARTING: _OUTSIDE | dict.fromkeys(_INSIDE, Goal.RUN),
    State.RUNNING: _OUTSIDE | dict.fromkeys(_INSIDE, Goal.RUN),
    State.STOPPING: _OUTSIDE | dict.fromkeys(_INSIDE, Goal.STOP),
    **{state: dict.fromkeys(MemberState, Goal.EXIT) for state in State if state.ended},
}
GOALS = CompleteMap[tuple[State, MemberState], Goal]("goals of a node")
"""Nodes that can be sent nothing (disconnected, silent) have no goal while the run is live."""
GOALS |= {(state, member): goal for state, row in _GOALS.items() for member, goal in row.items()}


def goal_of(run: Run, member: Member) -> Goal:
    """Return the goal of a node. Raises `InternalError` for a node that can be sent nothing."""
    if member.durable.outcome is not None:
        return Goal.EXIT
    return GOALS[run.durable.state, member.state]


def message_to(run: Run, member: Member, heartbeat_s: float, now: float) -> Desired:
    """Return the message to a node, with this heartbeat: the very object that was sent last, while it is up to date.

    Most heartbeats are answered so, since to make and pack the message again would take half of the machine's time for
    a heartbeat. Only messages with the goal to run are repeated, and none with a report or parts to fetch (`resume`,
    `copies`). Other goals and reports have texts and times that change by themselves. Which parts to fetch follows
    from the holdings that nodes report, and most of these reports change no `revision`.
    """
    sent = member.session.sent
    if (
        sent is not None
        and member.session.sent_revision == run.revision
        and sent.goal is Goal.RUN
        and sent.report is None
        and sent.resume is None
        and not sent.copies
        and sent.heartbeat_s == heartbeat_s
        and sent.lease_s == member.lease.length_s(run.policy, heartbeat_s)
    ):
        return sent
    return desired(run, member, heartbeat_s, now)


def knows_goal(run: Run, member: Member) -> bool:
    """Whether the last message to a node has all that a node is sent at once, as it is now."""
    sent = member.session.sent
    return sent is not None and all(getattr(sent, name) == value for name, value in _at_once(run, member).items())


def _at_once(run: Run, member: Member) -> dict[str, Any]:
    """Return the fields that are marked `AtOnce`, by name: they cost less than the whole message."""
    goal = goal_of(run, member)
    outcome = (member.durable.outcome or run.durable.outcome) if goal is Goal.EXIT else None
    return {
        "run": run.id,
        "round": _round(run, member),
        "goal": goal,
        "planned": _is_planned(run, member, outcome, goal),
        "outcome": outcome,
        "pair": run.judging.orders.get(member.node) if goal is Goal.WAIT else None,
        **run.keeping.desired_at_once(member, goal),
    }


def desired(run: Run, member: Member, heartbeat_s: float, now: float) -> Desired:
    """Return a new message to a node, with this heartbeat."""
    goal = goal_of(run, member)
    waits = goal is Goal.WAIT or (goal is Goal.STOP and member.state is not MemberState.STALE)
    until = _wait_until(run, member) if waits else None
    return Desired(
        **_at_once(run, member),
        **run.keeping.desired(member, goal),
        reason=clip(_reason(run, member)),
        wait_s=None if until is None else min(max(0.0, until - now), DURATION_S_MAX),
        heartbeat_s=heartbeat_s,
        lease_s=member.lease.length_s(run.policy, heartbeat_s),
        outage_grace_s=run.policy.outage_grace_s,
        assignment=member.durable.assignment if goal is Goal.RUN else None,
        report=_report_for(run, member, goal, now),
        remark=_remark(run, member, goal),
    )


def _remark(run: Run, member: Member, goal: Goal) -> str:
    """Return what a user is told beside the reason: warnings about the node, and about the round once its workers run.

    In a planned stop it is which worker hung before, since the reason does not name it; at the end, the lost step.
    """
    if goal is Goal.EXIT:
        return clip(run.keeping.lost_step.removeprefix("; "), SENTENCE_MAX) if run.durable.state.ended else ""
    if goal is Goal.STOP:
        return clip(Reasons(run).suspect, SENTENCE_MAX) if run.durable.planned else ""
    if member.state is MemberState.SUCCEEDED and run.durable.exit_overdue:
        return clip(run.durable.exit_overdue, SENTENCE_MAX)
    if member.state is not MemberState.RUNNING:
        return member.remark
    divergence = "" if run.durable.divergence is None else run.durable.divergence.reason
    warning = run.durable.exit_overdue or run.watching.remark
    return clip("; ".join(filter(None, (run.durable.lost_steps(), divergence, warning))), SENTENCE_MAX)


def _report_for(run: Run, member: Member, goal: Goal, now: float) -> Report | None:
    """Return the report that a node shows: on the last round as it starts the next one, or at a failed end."""
    report = run.durable.report
    if report is None:
        return None
    outcome = member.durable.outcome or run.durable.outcome
    starts = goal is Goal.RUN and member.state is MemberState.ASSIGNED and report.round == run.durable.round - 1
    ends = goal is Goal.EXIT and report.round == run.durable.round
    ends_well = outcome is not None and outcome.result in {Result.SUCCEEDED, Result.LEFT, Result.STOPPED}
    return aged_report(report, run, now) if starts or (ends and not ends_well) else None


def _round(run: Run, member: Member) -> int:
    """Return the number of the round; at the end of a run, at least the highest one that the node knows of this run.

    A node ignores a message of an earlier round than its own. An ended run may have a lower number: if it had no round,
    or if its last rounds are missing in an old copy of the records.
    """
    if not run.durable.state.ended:
        return run.durable.round
    known = (message.round for message in (member.observed, member.session.sent) if message and message.run == run.id)
    return max(run.durable.round, *known, 0)


def _is_planned(run: Run, member: Member, outcome: Outcome | None, goal: Goal) -> bool:
    """Whether a node's workers get time to save their state before they end, since nothing has gone wrong.

    Workers of an older round get none: their peers are gone. A node that was lost and is back is not in the round, but
    may still have workers of it.
    """
    if outcome is not None:
        return outcome.result in {Result.LEFT, Result.STOPPED}
    is_of_round = member.durable.in_round or run.is_about_round(member.observed)
    return goal is Goal.STOP and is_of_round and run.durable.state is State.STOPPING and run.durable.planned


def _wait_until(run: Run, member: Member) -> float | None:
    """Return when the wait of a node is over, for a round or, in a run that ends, for the disk; None if not known."""
    if run.durable.state is not State.FORMING or run.durable.stop_asked:
        return run.keeping.waits.disk_until
    ends = (run.gathering.join_timeouts.get(member.node), settled(run))
    return min((end for end in ends if end is not None), default=None)


def _reason(run: Run, member: Member) -> str:
    if member.state in {MemberState.PREPARING, MemberState.READY} and run.durable.state.at_work:
        return _waiting_text(run)
    if member.state is MemberState.QUARANTINED:
        return f"spare: its host is {member.readiness.quarantined}"
    if member.state is MemberState.HANDING_OVER:
        return f"it leaves as soon as {run.keeping.leaves_once(member)}"
    if member.state is MemberState.STALE:
        if member.observed.run != run.id:
            return "its workers are of a run that this coordinator does not know, or not any more: was its state lost?"
        return "its workers are of a round that is over for this node"
    waits = run.durable.state is State.FORMING or run.keeping.waits.disk_until is not None
    return Reasons(run).waiting_for if waits else run.durable.reason


def _waiting_text(run: Run) -> str:
    """Describe what a node that has arrived waits for while a round goes on."""
    number = run.durable.round
    if run.roll.round_size >= run.spec.nodes_max:
        return f"spare: round {number} has its maximum of nodes, {run.spec.nodes_max}"
    if run.spec.scale_up is ScaleUp.NEVER:
        return f"spare: round {number} does not end for nodes that arrive (--scale-up never)"
    if awaited_checkpoint(run) is not None:
        return f"round {number} is running until its next checkpoint; then the next one will include this node"
    return f"round {number} is running; the next one will include this node"
