"""Releases single nodes: those that are to leave, those whose join timeout has expired, and spares as a run succeeds.

A released node has its outcome, and exits. A node that is to leave may be the last one that holds some of the training
state that the workers keep in memory. Then it *hands over* first: it waits until other nodes have copied that
state, or it is on the disk.
"""

from __future__ import annotations

from collections.abc import Sequence

from coordinatord.core.rounds.queries.reasons import Reasons
from coordinatord.core.rounds.state.cluster import DRAINED_MAX, apply_drains
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import Member, MemberState
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.transitions.decision import Decision
from coordinatord.core.rounds.values.records import NodeReleased, Reason
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.messages import Outcome, Result
from coordinatord.protocol.text import clip

CHECK_AGAIN_S = 1.0
"""The seconds between two checks whether a write to the disk is over, while a node waits for it though its join timeout
has expired."""


def release(run: Run, member: Member, outcome: Outcome, decision: Decision) -> None:
    """Record the outcome of one node, and notify the node."""
    decision.record(NodeReleased(run.job, run.id, outcome.summary, member.node, member.incarnation, outcome))
    decision.notify(run, member)


# Nodes that are to leave


def release_leaving(run: Run, member: Member, decision: Decision, lost: str = "") -> None:
    """Release a node that leaves because its user or an operator wants that; `lost` says which step is lost with it."""
    drained = decision.cluster.durable.why_drained(run.job, member.node, member.offer.host)
    why = "left the job, as asked"
    if drained is not None:
        name, reason = drained
        why = f"left the job: {reason}; to let it in again: nodeclient undrain {name}, and start it"
    release(run, member, Outcome(Result.LEFT, ExitCode.TERMINATED, clip(why + lost)), decision)


def release_or_hand_over(run: Run, members: Sequence[Member], decision: Decision) -> None:
    """Release nodes outside the round that are to leave, or have them hand over if their kept state is needed."""
    handing_over = run.keeping.begin_handover(members, decision.now)
    for member in members:
        if member.node not in handing_over:
            release_leaving(run, member, decision)
            continue
        member.hands_over = True
        run.leaving.discard(member.node)  # it is outside the round now, and must not stop the next one
        run.gathering.join_timeouts.discard(member.node)  # it waits for no round
        run.roll.place(member)


def release_handed_over(run: Run, _: Reason, decision: Decision) -> None:
    """Release the nodes that hand over and whose wait has ended: an action of the table."""
    for node, wait in run.keeping.waits.nodes.items():
        if wait.until is not None and wait.until <= decision.now:
            release_leaving(run, run.members[node], decision, wait.last_step)


def drain_laggard(run: Run, decision: Decision) -> list[Run]:
    """Drain the node of a laggard from its job, if the job wants that; return the runs to advance."""
    drain = run.watching.laggard_drain()
    if drain is None or decision.cluster.durable.drains >= DRAINED_MAX:
        return []
    decision.record(drain)
    return apply_drains(decision.cluster)


# Nodes that wait


def release_spare(run: Run, member: Member, reason: str, decision: Decision) -> None:
    """Release a node that was in no round, as the run succeeds for this reason: a spare, or one that came too late.

    The latter came while the last step was being written, after all workers had succeeded.
    """
    came_late = run.durable.state is State.STOPPING and member.durable.joined_at > run.durable.entered_at
    why = "came after that" if came_late else "was a spare"
    result, code, text = Result.SUCCEEDED, ExitCode.OK, f"{reason}; this node {why} and ran no worker"
    if member.session.differs_from:  # probably it was meant to train something else, which has not been done
        result, code = Result.FAILED, ExitCode.TEMPFAIL
        text = f"{text}, and its command differs from that of node {member.session.differs_from}"
    release(run, member, Outcome(result, code, clip(text)), decision)


def release_timed_out(run: Run, member: Member, decision: Decision) -> None:
    """Release a node whose `--join-timeout` has expired.

    A node that writes a step to the disk stays until the write is over. While an operator's stop waits for the disk,
    all nodes stay.
    """
    wait = run.keeping.wait_at_timeout(member)
    if wait.until is not None and wait.until > decision.now:
        run.gathering.join_timeouts.set(member.node, min(wait.until, decision.now + CHECK_AGAIN_S))
    else:
        release(run, member, _timed_out(run, member, wait.last_step), decision)


def _timed_out(run: Run, member: Member, lost: str) -> Outcome:
    """Return the outcome of a node whose join timeout has expired; `lost` says which step is lost with it."""
    waited = f"{member.offer.join_timeout_s:g} s"
    least, why = run.spec.nodes_min, Reasons(run).waiting_for
    text = (
        f"not enough nodes within {waited}: {why}. Start {least} nodes with the same job id and coordinator, or give a"
        " longer --join-timeout"
    )
    if run.roll.count(MemberState.READY) >= least:
        text = f"no round within {waited}: {why}"
    return Outcome(Result.TIMED_OUT, ExitCode.TEMPFAIL, clip(text + lost))
