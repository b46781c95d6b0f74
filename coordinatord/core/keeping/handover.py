"""Whether a node that is to leave has to stay for a moment, because it alone keeps what the others resume from."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

from coordinatord.core.keeping.persistence import ends_by, holds_parts, step_to_write, writes
from coordinatord.core.keeping.resumption import has_restored, is_reachable, may_be_chosen
from coordinatord.core.keeping.shards import are_whole
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import Member, MemberState
from coordinatord.core.rounds.state.run import Run
from coordinatord.protocol.kept_state import KeptParts, KeptStep

HAND_OVER_S = 20.0
"""How long a node that leaves stays for others to get what it keeps: for a round to be formed, and for each round that
resumes from that to get it. A host that is about to be taken away has some 30 s, of which its workers need a part; 20 s
are 20 GB at the rate of a usual network."""


def may_have_to_give(run: Run, member: Member) -> bool:
    """Whether others may yet need what a node keeps: its workers have ended, and those of other nodes have not.

    Workers of other nodes may yet save the other shards of its step, or fail to save what this node has saved.
    """
    has_shards = any(part.shards > 1 for part in _big_parts(run, member))
    return has_shards or has_to_give(run, member) or holds_parts(run, member)


def has_to_give(run: Run, member: Member) -> bool:
    """Whether others need what this node keeps: without it a step that they resume from would not be whole.

    Such a step is the newest that may be chosen, and the one from which the present round resumes, until it has done a
    step. Of two nodes that leave with the same shard, the second one has to give, since the first no longer counts by
    then.
    """
    if not any(_big_parts(run, member)) or all(peer.leaves for peer in run.members.values()):
        return False
    return any(not _is_whole_without(run, member, at) for at in _needed_steps(run))


def _big_parts(run: Run, member: Member) -> Iterator[KeptParts]:
    kept = member.observed.kept
    if kept is not None and member.observed.run == run.id and member.keeper is not None:
        yield from (part for part in kept.parts if part.big)


def _needed_steps(run: Run) -> Iterator[KeptStep]:
    """Yield the steps that the present round or the next one may resume from."""
    resume, kept = run.durable.resume, run.kept
    if resume is not None and resume.disk is None and not run.durable.stepped and kept.is_whole(resume.at):
        yield resume.at
    newest = _newest_to_choose(run)
    if newest is not None:
        yield newest


def _newest_to_choose(run: Run) -> KeptStep | None:
    return next((at for at in run.kept.steps() if run.kept.is_whole(at) and may_be_chosen(run, at)), None)


def _is_whole_without(run: Run, member: Member, at: KeptStep) -> bool:
    held = run.kept.holders(at).items()
    others = (parts for node, parts in held if node != member.node and is_reachable(run.members[node]))
    return are_whole([part for parts in others for part in parts if part.big])


def has_to_stay(run: Run, member: Member) -> bool:
    """Whether a node outside the round that is to leave has to stay for what it keeps.

    A coordinator that was started again meanwhile does not know what others keep before it has heard them.
    """
    if not any(_big_parts(run, member)) or _is_given(run):
        return False
    if not run.kept.all_heard:
        return not all(peer.leaves for peer in run.members.values())
    return has_to_give(run, member)


def has_to_write(run: Run, member: Member) -> bool:
    """Whether a node writes a part of a step, or has one that would be lost with the nodes that leave."""
    return writes(run, member) or member.node in last_holders(run)


def last_holders(run: Run) -> Collection[str]:
    """Return the holders of a step that the disk lacks, if the nodes that stay between two rounds lack a part of it.

    Without this, the last of several nodes that leave one after the other would take the step along. So would nodes
    that leave while an older step is being written, or after a failed attempt.
    """
    if run.durable.state is not State.FORMING or run.kept.disk.every_s is None or not run.kept.all_heard:
        return ()
    return {node for at in _last_steps(run) for node in _holders_unless_others_stay(run, at)}


def _last_steps(run: Run) -> Iterator[KeptStep]:
    """Yield the step that is to be written, and the one before it if a node could not get the first: it may be damaged.

    Whether it is damaged shows when it is written. Nodes that have only the older one stay until then.
    """
    at, done = step_to_write(run), run.kept.disk.step
    if at is None:
        return
    yield at
    if not may_be_chosen(run, at):
        older = _newest_to_choose(run)
        if older is not None and older.round > 0 and (done is None or older > done):
            yield older


def _holders_unless_others_stay(run: Run, at: KeptStep) -> Collection[str]:
    held = run.kept.holders(at)
    stay = [parts for node, parts in held.items() if not run.members[node].leaves and is_reachable(run.members[node])]
    return () if are_whole([part for parts in stay for part in parts if part.big]) else held.keys()


def given_by(run: Run) -> float | None:
    """Return when the first of the nodes that stayed may leave; None if none stays."""
    stayed = list(run.members_in(MemberState.GIVING))
    if not stayed:
        return None
    holders, disk_by = last_holders(run), ends_by(run)
    return min(member_given_by(run, member, holders, disk_by) for member in stayed)


def member_given_by(run: Run, member: Member, holders: Collection[str], disk_by: float) -> float:
    """Return when a node that stayed may leave: when the others and the disk have what it keeps, or its time is over.

    `holders` are the last ones that have a step which the disk lacks. They wait for the disk until `disk_by`.
    """
    is_needed = not _is_given(run) and (has_to_give(run, member) or not run.kept.all_heard)
    written_by = disk_by if member.node in holders or writes(run, member) else -math.inf
    return max(written_by, member.gives_until if is_needed else -math.inf)


def _is_given(run: Run) -> bool:
    """Whether all nodes of the round have what they resume from, or resume from nothing."""
    if run.durable.state not in {State.STARTING, State.RUNNING}:
        return False
    return run.durable.stepped or run.durable.resume is None or all(has_restored(run, member) for member in run.inside)
