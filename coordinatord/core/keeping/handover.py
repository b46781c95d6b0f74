"""Decides which departing nodes stay for a moment, because they have a step that would be lost with them.

* Other nodes need the step that they resume from. Its holders stay until each node of the next round has it, but no
  longer than `HAND_OVER_S`.
* The disk needs the newest step. Its holders stay until it is written, as long as `persistence.ends_by` says.

Of several departing nodes with the same shard, one stays: a node that may leave is no holder for those after it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

from coordinatord.core.keeping.known import KeptState
from coordinatord.core.keeping.persistence import ends_by, holds_parts, step_to_write, writes
from coordinatord.core.keeping.resumption import has_restored, is_reachable, may_be_chosen
from coordinatord.core.keeping.sentences import lost_step
from coordinatord.core.keeping.shards import are_whole
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import Member, MemberState
from coordinatord.core.rounds.state.wings import Wait
from coordinatord.protocol.kept_state import KeptParts, KeptStep

HAND_OVER_S = 20.0
"""How long a departing node stays: until a round is formed, and again while each round fetches its state. A preempted
host has some 30 s, and its workers need a part of them. A common network carries 20 GB in 20 s."""


def may_be_needed(kept: KeptState, member: Member) -> bool:
    """Whether a step may be lost with a node whose workers ended before those of other nodes.

    The other nodes may still save the missing shards of a step, or fail to save one that this node has saved.
    """
    has_shards = any(part.shards > 1 for part in _big_parts(kept, member))
    return has_shards or _is_needed_by_others(kept, member) or holds_parts(kept, member)


def hold_back(kept: KeptState, members: Sequence[Member], now: float) -> Collection[str]:
    """Return which of these nodes have to stay, and record how long. All are outside the round and about to leave.

    A restarted coordinator holds back all nodes with state until it has heard every member.
    """
    for_disk, held, gone = _holders_for_disk(kept), set[str](), set[str]()
    for member in members:
        if _has_to_stay(kept, member, gone) or member.node in for_disk or writes(kept, member):
            kept.stays_until[member.node] = now + HAND_OVER_S  # counts while others need it, be it only later
            held.add(member.node)
        else:
            gone.add(member.node)
    return held


def renew_time(kept: KeptState, now: float) -> None:
    """Restart the time of nodes that hand over their state: the round could not fetch it until now."""
    for member in kept.run.roll.in_state(MemberState.HANDING_OVER):
        kept.stays_until[member.node] = now + HAND_OVER_S


def waits(kept: KeptState) -> dict[str, Wait]:
    """Return how long each node that was held back stays: until nothing needs it, or its time is over."""
    stay = list(kept.run.roll.in_state(MemberState.HANDING_OVER))
    if not stay:
        return {}
    for_disk, disk_by, lost = _holders_for_disk(kept), ends_by(kept), lost_step(kept)
    found, gone = {}, set[str]()
    for member in stay:
        is_needed = not _is_handed_over(kept) and (_is_needed_by_others(kept, member, gone) or not kept.index.all_heard)
        handed_by = kept.stays_until.get(member.node, -math.inf) if is_needed else -math.inf
        written_by = disk_by if member.node in for_disk or writes(kept, member) else -math.inf
        found[member.node] = Wait(max(written_by, handed_by), last_step=lost if member.node in for_disk else "")
        if not is_needed:
            gone.add(member.node)
    return found


# For other nodes


def _has_to_stay(kept: KeptState, member: Member, gone: Collection[str]) -> bool:
    if not any(_big_parts(kept, member)) or _is_handed_over(kept):
        return False
    if not kept.index.all_heard:
        return kept.disk.every_s is not None or not _all_leave(kept)
    return _is_needed_by_others(kept, member, gone)


def _is_needed_by_others(kept: KeptState, member: Member, gone: Collection[str] = ()) -> bool:
    """Whether a step that others resume from is not whole without a node, and without those in `gone`."""
    if not any(_big_parts(kept, member)) or _all_leave(kept):
        return False
    return any(not _is_whole_without(kept, {member.node, *gone}, at) for at in _needed_steps(kept))


def _all_leave(kept: KeptState) -> bool:
    return all(peer.leaves for peer in kept.run.members.values())


def _big_parts(kept: KeptState, member: Member) -> Iterator[KeptParts]:
    holding = member.observed.kept
    if holding is not None and member.observed.run == kept.run.id and member.keeper is not None:
        yield from (part for part in holding.parts if part.big)


def _needed_steps(kept: KeptState) -> Iterator[KeptStep]:
    """Yield what the present round resumes from, until it makes a step, and what the next one may resume from."""
    durable = kept.run.durable
    resume = durable.resume
    if resume is not None and resume.disk is None and not durable.stepped and kept.index.is_whole(resume.at):
        yield resume.at
    newest = _newest_to_choose(kept)
    if newest is not None:
        yield newest


def _newest_to_choose(kept: KeptState) -> KeptStep | None:
    return next((at for at in kept.index.steps() if kept.index.is_whole(at) and may_be_chosen(kept, at)), None)


def _is_whole_without(kept: KeptState, nodes: Collection[str], at: KeptStep) -> bool:
    """Whether a step is whole without these nodes.

    In a round that resumes from the step, only the holders in its plan count: nodes may still be fetching from one that
    leaves, even if another node has fetched the same parts.
    """
    plan = kept.plan if kept.run.durable.state.at_work else None
    held = (plan.held if plan is not None and plan.at == at else kept.index.holders(at)).items()
    return are_whole(parts for node, parts in held if node not in nodes and is_reachable(kept.run.members[node]))


def _is_handed_over(kept: KeptState) -> bool:
    """Whether all nodes of the round have the state that they resume from, or begin anew."""
    if not kept.run.durable.state.at_work:
        return False
    return (
        kept.run.durable.stepped
        or kept.run.durable.resume is None
        or all(has_restored(kept, member) for member in kept.run.roll.inside)
    )


# For the disk


def _holders_for_disk(kept: KeptState) -> Collection[str]:
    """Return the holders of a step that is not on the disk yet, if those that do not leave lack a shard of it.

    They stay, between two rounds. Otherwise nodes that leave one by one would lose the step while an older one is being
    written, or after a failed write.
    """
    if kept.run.durable.state is not State.FORMING or kept.disk.every_s is None or not kept.index.all_heard:
        return ()
    return {node for at in _last_steps(kept) for node in _holders_unless_others_stay(kept, at)}


def _last_steps(kept: KeptState) -> Iterator[KeptStep]:
    """Yield the step to write next, and an older one too if no round may resume from the first.

    The first may be damaged, which shows only when it is written. Until then, nodes that have only the older one stay.
    """
    at, done = step_to_write(kept), kept.disk.step
    if at is None:
        return
    yield at
    if not may_be_chosen(kept, at):
        older = _newest_to_choose(kept)
        if older is not None and older.round > 0 and (done is None or older > done):
            yield older


def _holders_unless_others_stay(kept: KeptState, at: KeptStep) -> Collection[str]:
    held, members = kept.index.holders(at), kept.run.members
    staying = (parts for node, parts in held.items() if not members[node].leaves and is_reachable(members[node]))
    return () if are_whole(staying) else held.keys()
