"""Decides which departing nodes stay for a moment, because state in their memory would be lost with them.

They stay for one of two reasons, and each has its limit:

* Other nodes are to resume from a step that is not whole without this node. It stays until each node of the next round
  has what it needs, for `HAND_OVER_S` at most.
* The newest step is not on the disk yet. Its holders stay until it is written, up to the time of `write_plan.ends_by`.

While some workers of a round still end, `may_be_needed` keeps nodes whose workers have ended. Once all have ended, or
if a node outside the round is to leave, `begin_handover` decides which nodes stay. The table of transitions releases
each of them when its wait in `waits` is over. `renew_time` is called when a round is formed.

`begin_handover` and `waits` go through the departing nodes one after the other. A node that others do not need counts
as gone for the nodes after it: even if it stays for the disk, it leaves as soon as the write ends. So of several nodes
with the same shard, only the last one is needed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from coordinatord.core.keeping.known import KeptState
from coordinatord.core.keeping.resume_choice import has_restored, is_reachable, may_be_chosen
from coordinatord.core.keeping.sentences import lost_step
from coordinatord.core.keeping.shards import Coverage, are_whole
from coordinatord.core.keeping.write_plan import ends_by, is_unsure, may_write, overwriter, unwritten, writes
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import Member, MemberState
from coordinatord.core.rounds.state.wings import Wait
from coordinatord.core.rounds.values.due_times import NOW
from coordinatord.protocol.kept_state import KeptParts, KeptStep

HAND_OVER_S = 20.0
"""How long a departing node stays for others, in seconds: until a round is formed, and again for each round that
fetches its state. A preempted host has some 30 s, of which its workers need a part. In 20 s, a network of 10 Gbit/s
carries 20 GB."""


def may_be_needed(kept: KeptState, member: Member) -> bool:
    """Whether a step may be lost with a node that wants to leave, while workers of other nodes still end.

    In doubt, the node is kept until `begin_handover` decides, when all workers have ended. There is doubt until a
    restarted coordinator has heard all nodes; if the node may have to write to the disk; and if a step has several
    shards, since other nodes may still save the missing ones, or fail to save one that this node has.
    """
    if is_unsure(kept):
        return True
    parts = list(_big_parts(kept, member))
    may_be_needed_later = may_write(member) or any(part.shards > 1 for part in parts)
    return bool(parts) and (may_be_needed_later or _is_lacking_without(member, _steps_for_others(kept)))


def begin_handover(kept: KeptState, members: Sequence[Member], now: float) -> Collection[str]:
    """Return which of these nodes have to stay, and record how long. All are outside the round and about to leave.

    They stay for parts that others need, for a step that is to be written to the disk, and for a write in progress.
    """
    for_disk, held = _holders_for_disk(kept), set[str]()
    for member, is_needed in _with_needs(kept, members):
        if is_needed or member.node in for_disk or writes(kept, member):
            kept.hand_over_by[member.node] = now + HAND_OVER_S  # for the disk, too: others may come to need the node
            held.add(member.node)
    return held


def renew_time(kept: KeptState, now: float) -> None:
    """Begin the time of departing nodes anew: only now can the nodes of a new round fetch what they need."""
    for member in kept.run.roll.in_state(MemberState.HANDING_OVER):
        kept.hand_over_by[member.node] = now + HAND_OVER_S


def waits(kept: KeptState) -> dict[str, Wait]:
    """Return how long each node that hands over stays: until it is not needed any more, or its time is over."""
    handing_over = list(kept.run.roll.in_state(MemberState.HANDING_OVER))
    if not handing_over:
        return {}
    for_disk, disk_by, loss_text = _holders_for_disk(kept), ends_by(kept), lost_step(kept)
    found: dict[str, Wait] = {}
    for member, is_needed in _with_needs(kept, handing_over):
        handed_by = kept.hand_over_by.get(member.node, NOW) if is_needed else NOW
        written_by = disk_by if member.node in for_disk or writes(kept, member) else NOW
        found[member.node] = Wait(max(written_by, handed_by), last_step=loss_text if member.node in for_disk else "")
    return found


# For other nodes


class _RemainingParts:
    """The parts of a step that others may resume from: those that can be reached once some nodes have left."""

    def __init__(self, kept: KeptState, at: KeptStep) -> None:
        """Begin with all holders.

        If the round at work resumes from the step, only the holders in its plan (`kept.plan`) count: nodes may still be
        fetching from one of them, even if another node has the same parts by now.
        """
        plan, members = kept.plan if kept.run.durable.state.at_work else None, kept.run.members
        held = (plan.held if plan is not None and plan.at == at else kept.index.holders(at)).items()
        self._big = {node: [part for part in parts if part.big] for node, parts in held if is_reachable(members[node])}
        self._coverage = Coverage()
        self._coverage.replace((), [part for parts in self._big.values() for part in parts])

    def is_whole_without(self, node: str) -> bool:
        """Whether the step stays whole if this node leaves as well."""
        return self._coverage.is_whole_without(self._big.get(node, ()))

    def leave(self, node: str) -> None:
        """Remove the parts of a node that leaves."""
        self._coverage.replace(self._big.pop(node, ()), ())


def _with_needs(kept: KeptState, leaving: Sequence[Member]) -> Iterator[tuple[Member, bool]]:
    """Yield departing nodes, each with whether other nodes need it.

    They do if a step is not whole without it. A restarted coordinator does not know that until it has heard every
    member, so each node with parts counts as needed until then. If all nodes leave, they count as needed only where
    nodes write to a disk, since the disk may lack a step.
    """
    is_over, steps = _is_handed_over(kept), _steps_for_others(kept)
    is_unknown = not kept.index.all_heard and (kept.disk.every_s is not None or not kept.run.roll.all_leave)
    may_need_any = not is_over and (is_unknown or bool(steps))
    for member in leaving:
        has_parts = may_need_any and any(_big_parts(kept, member))
        is_needed = has_parts and (is_unknown or _is_lacking_without(member, steps))
        yield member, is_needed
        for step in steps if not is_needed else ():
            step.leave(member.node)


def _is_lacking_without(member: Member, steps: Iterable[_RemainingParts]) -> bool:
    """Whether one of these steps is not whole without a node."""
    return any(not step.is_whole_without(member.node) for step in steps)


def _big_parts(kept: KeptState, member: Member) -> Iterator[KeptParts]:
    if member.observed.run == kept.run.id and member.keeper is not None:
        yield from (part for part in member.holding.parts if part.big)


def _steps_for_others(kept: KeptState) -> list[_RemainingParts]:
    """Return the steps that departing nodes have to stay for: none if no node stays."""
    return [] if kept.run.roll.all_leave else [_RemainingParts(kept, at) for at in _needed_steps(kept)]


def _needed_steps(kept: KeptState) -> Iterator[KeptStep]:
    """Yield the step that the present round resumes from, until it has made a step, and the step for the next round."""
    durable = kept.run.durable
    resume = durable.resume
    if resume is not None and resume.disk is None and not durable.stepped and kept.index.is_whole(resume.at):
        yield resume.at
    for at in kept.index.steps():
        if kept.index.is_whole(at) and may_be_chosen(kept, at):
            yield at
            return


def _is_handed_over(kept: KeptState) -> bool:
    """Whether the nodes of the round at work have fetched the state that they resume from, or need none."""
    durable = kept.run.durable
    if not durable.state.at_work:
        return False
    return durable.stepped or durable.resume is None or all(has_restored(kept, each) for each in kept.run.roll.inside)


# For the disk


def _holders_for_disk(kept: KeptState) -> Collection[str]:
    """Return the holders of each step that the disk lacks, if the nodes that stay lack a shard of it.

    All of these holders stay until a round is formed. If they left one by one, while an older step is being written or
    after a failed write, the step would be lost.
    """
    if kept.run.durable.state is not State.FORMING or kept.disk.every_s is None or not kept.index.all_heard:
        return ()
    return {node for at in _last_steps(kept) for node in _holders_unless_others_suffice(kept, at)}


def _last_steps(kept: KeptState) -> Iterator[KeptStep]:
    """Yield the steps that the disk lacks, from the newest down to the first that is certain to be of use there.

    Rounds may resume from such a step, and no worker may overwrite it before it is written. The newer steps may turn
    out to be of no use, so nodes stay for all of them.
    """
    for at in unwritten(kept):
        yield at
        if may_be_chosen(kept, at) and not overwriter(kept, at):
            return


def _holders_unless_others_suffice(kept: KeptState, at: KeptStep) -> Collection[str]:
    held, members = kept.index.holders(at), kept.run.members
    remaining = (parts for node, parts in held.items() if not members[node].leaves and is_reachable(members[node]))
    return () if are_whole(remaining) else held.keys()
