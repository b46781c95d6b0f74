"""Whether a node that is to leave has to stay for a moment, since it alone keeps what the others resume from."""

from __future__ import annotations

import math

from coordinatord.core.queries.persistence import ends_by, writes
from coordinatord.core.queries.resumption import has_restored
from coordinatord.core.state.durable import State
from coordinatord.core.state.member import Member, MemberState
from coordinatord.core.state.run import Run
from coordinatord.core.values.shards import are_whole

HAND_OVER_S = 20.0
"""How long a node that leaves stays for others to get what it keeps. A host that is about to be taken away has some
30 s, of which its workers need a part; 20 s are 20 GB at the rate of a usual network."""


def keeps_shards(run: Run, member: Member) -> bool:
    """Whether a node keeps state that not every rank has."""
    kept = member.observed.kept
    ours = kept is not None and member.observed.run == run.id and member.keeper is not None
    return ours and kept is not None and any(one.big and one.shards > 1 for one in kept.parts)


def has_to_give(run: Run, member: Member) -> bool:
    """Whether others need what this node keeps: without it the newest whole step would not be whole."""
    at = run.kept.newest_whole
    if at is None or not keeps_shards(run, member) or all(one.leaves for one in run.members.values()):
        return False
    others = (parts for node, parts in run.kept.holders(at).items() if node != member.node)
    return not are_whole([one for parts in others for one in parts if one.big])


def given_by(run: Run) -> float | None:
    """Return when the first of the nodes that stayed may leave; None if none stays."""
    return min((member_given_by(run, member) for member in run.members_in(MemberState.GIVING)), default=None)


def member_given_by(run: Run, member: Member) -> float:
    """Return when a node that stayed may leave: others have what they need and it writes nothing, or it takes long."""
    has_next_round = run.durable.state in {State.STARTING, State.RUNNING}
    taken = has_next_round and (run.durable.stepped or _have_all(run))
    written_by = ends_by(run) if writes(run, member) else -math.inf
    return max(written_by, -math.inf if taken else member.gives_until)


def _have_all(run: Run) -> bool:
    return run.durable.resume is None or all(has_restored(run, member) for member in run.inside)
