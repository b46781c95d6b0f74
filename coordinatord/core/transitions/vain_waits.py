"""Releases a node that has waited for a round for as long as its `--join-timeout` allows."""

from __future__ import annotations

from coordinatord.core.queries import persistence
from coordinatord.core.queries.reasons import Reasons
from coordinatord.core.state.member import Member, MemberState
from coordinatord.core.state.run import Run
from coordinatord.core.transitions import actions
from coordinatord.core.transitions.decision import Decision
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.messages import Outcome, Result
from coordinatord.protocol.text import clip

LOOK_AGAIN_S = 1.0
"""How often it is checked whether a write to the disk is over that a node stays for, in seconds."""


def give_up(run: Run, member: Member, decision: Decision) -> None:
    """Release a node that has waited in vain.

    One that writes a step to the disk stays until that is over. So do all nodes of a run that is to end after that.
    """
    written_by = persistence.ends_by(run)
    if (persistence.writes(run, member) or run.durable.stop_asked) and written_by > decision.now:
        run.give_up.set(member.node, min(written_by, decision.now + LOOK_AGAIN_S))
    else:
        actions.release_node(run, member, _in_vain(run, member), decision)


def _in_vain(run: Run, member: Member) -> Outcome:
    """Return the outcome of a node that waited in vain."""
    waited, reasons = f"{member.offer.join_timeout_s:g} s", Reasons(run)
    least, why = run.spec.nodes_min, reasons.waiting_for
    text = (
        f"not enough nodes within {waited}: {why}. Start {least} nodes with the same --job-id and --coord, or give a"
        " longer --join-timeout"
    )
    if run.count(MemberState.READY) >= least:
        text = f"no round within {waited}: {why}"
    goes_on = run.kept.disk.work is not None and not persistence.writes(run, member)
    return Outcome(Result.TIMED_OUT, ExitCode.TEMPFAIL, clip(text if goes_on else text + reasons.unwritten))
