"""Takes in what nodes say of the state that they keep, and decides anew which steps must not be overwritten.

Of a round that is stopped on purpose it takes in after which step the workers stand still.
"""

from __future__ import annotations

from coordinatord.core.state.member import Member
from coordinatord.core.state.run import Run
from coordinatord.protocol.kept_state import Restoring


def note(run: Run, member: Member) -> None:
    """Take in what a member's report says that it keeps; what it keeps of another run does not count."""
    observed, kept = member.observed, member.observed.kept
    parts = () if kept is None or observed.run != run.id else kept.parts
    if run.kept.note(member.node, parts) and run.kept.advance():
        run.revision += 1
    here = observed.run == run.id and observed.round == run.durable.round and member.durable.in_round
    if here and kept is not None and kept.restoring is Restoring.FAILED:
        run.kept.failed[member.node] = kept.problem
    if here and kept is not None and kept.halts_after is not None:
        run.halting.promised.setdefault(member.node, kept.halts_after)
