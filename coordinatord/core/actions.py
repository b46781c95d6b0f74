"""What happens on the way from one state of a run to the next: the right-hand side of the table."""

from __future__ import annotations

from coordinatord.core.addresses import master_address
from coordinatord.core.effects import NodeGone, RoundEnded, RoundFormed, RunEnded, StateChanged
from coordinatord.core.member import Member, Standing
from coordinatord.core.outbox import Outbox
from coordinatord.core.ranks import assign
from coordinatord.core.run import MAY_HAVE_WORKERS, Run, State
from coordinatord.core.verdict import Loss
from coordinatord.core.words import Words
from coordinatord.wire.exits import ExitCode, shell_exit_code
from coordinatord.wire.messages import Assignment, Outcome, Result, clip

# Transitions: each enters `state` for `reason` at `now`


def form(run: Run, state: State, reason: str, now: float, outbox: Outbox) -> None:
    """Give the ready nodes their ranks; nodes beyond the maximum stay as spares."""
    del now
    nodes = run.candidates
    run.begin_round(tuple(member.node for member in nodes), _assignments(run, nodes))
    run.origin = reason
    for member in nodes:
        member.in_round = True
        run.place(member)
    _enter(run, state, reason)
    outbox.record(
        RoundFormed(
            run.job,
            run.id,
            reason,
            round=run.round,
            nodes=run.order,
            workers=tuple(member.join.offer.workers for member in nodes),
            master_address=run.assignments[nodes[0].node].master_address,
            master_port=nodes[0].observed.port,
        )
    )
    outbox.tell_all(run)


def proceed(run: Run, state: State, reason: str, now: float, outbox: Outbox) -> None:
    """Go on with the same round and the same goals."""
    del now
    _enter(run, state, reason)
    outbox.record(StateChanged(run.job, run.id, reason, round=run.round, state=state))


def stop_planned(run: Run, state: State, reason: str, now: float, outbox: Outbox) -> None:
    """End the round on purpose: workers get the time to save their state."""
    run.planned_at = now
    _stop(run, state, reason, now, outbox)


def stop_at_once(run: Run, state: State, reason: str, now: float, outbox: Outbox) -> None:
    """End a round that cannot go on: nobody waits for workers that are blocked in a collective."""
    run.planned_at = None
    _stop(run, state, reason, now, outbox)


def reform(run: Run, state: State, reason: str, now: float, outbox: Outbox) -> None:
    """Judge the round that is over, charge the budget, and let the nodes that are left form the next one."""
    verdict = run.verdict
    run.restarts_used += verdict.charged is not None
    run.cause = verdict.reason
    outbox.record(
        RoundEnded(
            run.job,
            run.id,
            verdict.reason,
            round=run.round,
            charged=verdict.charged is not None,
            restarts_used=run.restarts_used,
        )
    )
    _dissolve(run, now, outbox)
    _enter(run, state, reason)
    outbox.tell_all(run)


def leave_behind(run: Run, state: State, reason: str, now: float, outbox: Outbox) -> None:
    """Go on without the nodes that cannot end their workers; they may come back as new arrivals when they have."""
    for member in list(run.standing(*MAY_HAVE_WORKERS)):
        run.losses.append(Loss(member.node, member.silent_since))
        member.in_round = False
        run.place(member)
    proceed(run, state, reason, now, outbox)


def fail_workers(run: Run, state: State, reason: str, now: float, outbox: Outbox) -> None:
    """End the run because its workers fail for good, with the code of the first cause."""
    verdict = run.verdict
    code = shell_exit_code(verdict.charged.failure.exit_code) if verdict.charged else ExitCode.INTERNAL
    budget = f"restarts used: {run.restarts_used} of {run.spec.max_restarts}"
    _end(run, state, f"{reason} ({budget})", Outcome(Result.FAILED, code, ""), now, outbox)


def fail_abandoned(run: Run, state: State, reason: str, now: float, outbox: Outbox) -> None:
    """End the run because nobody is left to go on with it."""
    _end(run, state, reason, Outcome(Result.FAILED, ExitCode.TEMPFAIL, ""), now, outbox)


def succeed(run: Run, state: State, reason: str, now: float, outbox: Outbox) -> None:
    """End the run well: everyone is told at once, there is no exit barrier."""
    _end(run, state, reason, Outcome(Result.SUCCEEDED, ExitCode.OK, ""), now, outbox)


# Members


def dismiss(run: Run, member: Member, outcome: Outcome, outbox: Outbox) -> None:
    """Let one node go while the run goes on. One whose workers have all succeeded still counts as that."""
    member.outcome = outcome
    run.give_up.discard(member.node)
    run.leaving.discard(member.node)
    run.place(member)
    outbox.record(NodeGone(run.job, run.id, outcome.summary, member.node, member.incarnation))
    outbox.tell(run, member)
    if not run.counted:
        run.emptied_at = None


def lose(run: Run, member: Member, reason: str, now: float, outbox: Outbox) -> None:
    """Count a node as gone without a word: evidence of why the round ended, unless it had done its part of it."""
    if member.in_round and member.standing is not Standing.SUCCEEDED:
        run.losses.append(Loss(member.node, member.silent_since))
    run.remove(member)
    outbox.close(member)
    outbox.record(NodeGone(run.job, run.id, reason, member.node, member.incarnation))
    if not run.counted:
        run.emptied_at = now


# Parts of the above


def _enter(run: Run, state: State, reason: str) -> None:
    run.state = state
    run.reason = reason


def _assignments(run: Run, nodes: list[Member]) -> dict[str, Assignment]:
    address = master_address(nodes[0], nodes)
    ranks = assign([member.seat for member in nodes])
    world_size = sum(part.workers for part in ranks)
    return {
        member.node: Assignment(
            group_rank=part.group_rank,
            group_world_size=len(nodes),
            first_rank=part.first_rank,
            world_size=world_size,
            first_role_rank=part.first_role_rank,
            role_world_size=part.role_world_size,
            master_address=address,
            master_port=nodes[0].observed.port,
            restarts_used=run.restarts_used,
            max_restarts=run.spec.max_restarts,
        )
        for member, part in zip(nodes, ranks, strict=True)
    }


def _stop(run: Run, state: State, reason: str, now: float, outbox: Outbox) -> None:
    run.trigger = reason
    slowest = max((m.join.offer.stop_timeout_s for m in run.standing(*MAY_HAVE_WORKERS)), default=0)
    run.stop_overdue_at = now + slowest + run.policy.stop_limit_s
    for member in [m for m in run.members.values() if m.in_round and m.expired and m.outcome is None]:
        lose(run, member, silence(member), now, outbox)
    _enter(run, state, reason)
    outbox.record(StateChanged(run.job, run.id, reason, round=run.round, state=state))
    outbox.tell_all(run)


def _dissolve(run: Run, now: float, outbox: Outbox) -> None:
    leaving = set(run.leaving)
    for member in list(run.members.values()):
        if member.in_round:
            member.in_round = False
            run.place(member)
        if member.node in leaving:
            dismiss(run, member, left(), outbox)
        elif member.standing is Standing.DISMISSED and member.expired:
            run.remove(member)
        elif member.standing is Standing.READY:
            run.give_up.set(member.node, now + member.join.offer.join_timeout_s)


def _end(run: Run, state: State, reason: str, outcome: Outcome, now: float, outbox: Outbox) -> None:
    del now
    _enter(run, state, reason)
    run.outcome = Outcome(outcome.result, outcome.exit_code, clip(reason))
    run.give_up.clear()
    outbox.record(RunEnded(run.job, run.id, reason, run.outcome))
    outbox.tell_all(run)


def silence(member: Member) -> str:
    """Say how a node was lost."""
    return "its connection closed, and it did not come back" if member.session is None else "silent for its whole lease"


def left() -> Outcome:
    """Return the outcome of a node that left because it was asked to."""
    return Outcome(Result.LEFT, ExitCode.TERMINATED, "left the job, as asked")


def timed_out(run: Run, member: Member) -> Outcome:
    """Return the outcome of a node that waited in vain."""
    waited = member.join.offer.join_timeout_s
    least = run.spec.nodes_min
    text = (
        f"not enough nodes within {waited:g} s: {Words(run).waiting_for}. Start {least} nodes with the same"
        " --job-id and --coord, or give a longer --join-timeout"
    )
    return Outcome(Result.TIMED_OUT, ExitCode.TEMPFAIL, clip(text))
