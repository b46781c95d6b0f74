"""Releases nodes while a run goes on: those that are to leave, and those whose join timeout is over.

A node that leaves stays as long as others or the disk need what it keeps.
"""

from __future__ import annotations

from collections.abc import Sequence

from coordinatord.core.rounds.queries.reasons import Reasons
from coordinatord.core.rounds.state.cluster import DRAINED_MAX, apply_drains
from coordinatord.core.rounds.state.member import Member, MemberState
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.transitions.decision import Decision
from coordinatord.core.rounds.values.records import NodeReleased
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.messages import Outcome, Result
from coordinatord.protocol.text import clip

LOOK_AGAIN_S = 1.0
"""How often it is checked whether a write to the disk is over that a node stays for, in seconds."""


def release(run: Run, member: Member, outcome: Outcome, decision: Decision) -> None:
    """Release one node with this outcome."""
    decision.record(NodeReleased(run.job, run.id, outcome.summary, member.node, member.incarnation, outcome))
    decision.notify(run, member)


# Nodes that are to leave


def release_left(run: Run, member: Member, decision: Decision, lost: str = "") -> None:
    """Release a node that leaves because it was asked to; `lost` says which step is lost with it."""
    why = f"left the job: {member.drained}" if member.drained else "left the job, as asked"
    release(run, member, Outcome(Result.LEFT, ExitCode.TERMINATED, clip(why + lost)), decision)


def release_or_hold_back(run: Run, members: Sequence[Member], decision: Decision) -> None:
    """Release nodes outside the round that are to leave, or let them stay if they are needed."""
    needed = run.keeping.hold_back(members, decision.now)
    for member in members:
        if member.node not in needed:
            release_left(run, member, decision)
            continue
        member.held_back = True
        run.leaving.discard(member.node)
        run.gathering.join_timeouts.discard(member.node)  # it waits for no round
        run.roll.place(member)


def release_held_back(run: Run, decision: Decision) -> None:
    """Release the nodes that others and the disk need no more, or that have stayed for as long as they may."""
    for node, wait in run.keeping.waits().items():
        if wait.until is not None and wait.until <= decision.now:
            release_left(run, run.members[node], decision, wait.last_step)


# Nodes that wait


def release_spare(run: Run, member: Member, reason: str, decision: Decision) -> None:
    """Release a node that was not needed, as the run succeeds for this reason."""
    result, code, text = Result.SUCCEEDED, ExitCode.OK, f"{reason}; this node was a spare and ran no worker"
    if member.session.differs_from:
        result, code = Result.FAILED, ExitCode.TEMPFAIL
        text = f"{text}, and its command is another one than that of node {member.session.differs_from}"
    release(run, member, Outcome(result, code, clip(text)), decision)


def release_in_vain(run: Run, member: Member, decision: Decision) -> None:
    """Release a node that has waited for a round for as long as its `--join-timeout` allows.

    One that writes a step to the disk stays until that is over. So do all nodes of a run that is to end after that.
    """
    wait = run.keeping.wait_at_timeout(member)
    if wait.until is not None and wait.until > decision.now:
        run.gathering.join_timeouts.set(member.node, min(wait.until, decision.now + LOOK_AGAIN_S))
    else:
        release(run, member, _in_vain(run, member, wait.last_step), decision)


def _in_vain(run: Run, member: Member, lost: str) -> Outcome:
    """Return the outcome of a node whose join timeout is over; `lost` says which step is lost with it."""
    waited, reasons = f"{member.offer.join_timeout_s:g} s", Reasons(run)
    least, why = run.spec.nodes_min, reasons.waiting_for
    text = (
        f"not enough nodes within {waited}: {why}. Start {least} nodes with the same job id and coordinator, or give a"
        " longer --join-timeout"
    )
    if run.roll.count(MemberState.READY) >= least:
        text = f"no round within {waited}: {why}"
    return Outcome(Result.TIMED_OUT, ExitCode.TEMPFAIL, clip(text + lost))


def drain_laggard(run: Run, decision: Decision) -> list[Run]:
    """Drain the node of a laggard; return the runs in which something may follow, since it may be in several."""
    drain = run.watching.laggard()
    if drain is None or len(decision.cluster.durable.drained) >= DRAINED_MAX:
        return []
    decision.record(drain)
    return apply_drains(decision.cluster)
