"""Chooses the step that a round resumes from, and tells each node from where to fetch its parts of that step.

It is the newest step that is whole on the disk, or in the memory of nodes that can be reached. A step of a later round
is newer, whatever its number, since a round may redo steps. All nodes resume from the same step, or all begin anew.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from coordinatord.core.keeping.bad_steps import has_spoiled, is_doubtful
from coordinatord.core.keeping.disk_steps import find_step, newest_on_disk
from coordinatord.core.keeping.known import KeptState
from coordinatord.core.keeping.resume_plan import ResumePlan
from coordinatord.core.keeping.shards import are_whole
from coordinatord.core.rounds.queries.next_round import master_address
from coordinatord.core.rounds.state.member import Member
from coordinatord.core.rounds.values.resume_point import HOLDERS_NAMED, ResumePoint, SpoiledStep, with_spoiled
from coordinatord.protocol.kept_state import KeptSource, KeptStep, Restoring, Resume, WantedParts
from coordinatord.protocol.messages import Goal


def resume_point(kept: KeptState, nodes: Sequence[Member], before: KeptStep | None = None) -> ResumePoint | None:
    """Choose the step that a round of these nodes resumes from; None if it has to begin anew.

    Memory is preferred where it is as new as the disk.

    If replicas have diverged, the point is older than `before`, the first step that may differ. Workers go on until the
    round ends, so the step must not be overwritten or deleted meanwhile. That rules out the disk while a step becomes
    whole there, since the oldest one may be deleted then.
    """
    if not nodes or not all(member.keeper is not None for member in nodes):
        return None
    may_be_deleted = before is not None and kept.disk.is_committing
    disk = None if may_be_deleted else newest_on_disk(kept, nodes, before)
    memory = _point_in_memory(kept, nodes, before)
    return disk if disk is not None and (memory is None or disk.at > memory.at) else memory


def differing_step(kept: KeptState, point: ResumePoint | None) -> KeptStep | None:
    """Return the newest step in which ranks have different states; None if there is none, or `point` is newer."""
    at = next((at for at in kept.index.steps() if kept.index.differs(at)), None)
    return None if at is None or (point is not None and point.at > at) else at


def bad_steps(kept: KeptState, point: ResumePoint | None) -> tuple[tuple[SpoiledStep, ...], KeptStep | None]:
    """Return the spoiled steps and the first doubted one for the next round, which resumes from `point`.

    Ranks may differ in doubted steps, and rounds go on from these only where there is no better step. All steps that
    such a round makes are doubted as well. Once a round resumes from an older step, it makes the doubted ones again, so
    those that earlier rounds made are spoiled. A step in which ranks do differ is spoiled as well.
    """
    durable = kept.run.durable
    number, doubted, spoiled = durable.round + 1, durable.doubted, durable.spoiled
    back_to, differing = None if point is None else point.at, differing_step(kept, point)
    if differing is not None:
        spoiled = with_spoiled(spoiled, SpoiledStep(differing, number), back_to)
    if point is not None and is_doubtful(durable, point):
        # The first step in doubt stays. If no step of this run is in doubt yet, `point` is one of an earlier run: all
        # steps from the next round on are in doubt.
        return spoiled, doubted or KeptStep(number, 0)
    if doubted is not None:
        spoiled = with_spoiled(spoiled, SpoiledStep(doubted, number), back_to)
    return spoiled, None


def _point_in_memory(kept: KeptState, nodes: Sequence[Member], before: KeptStep | None) -> ResumePoint | None:
    """Return the newest step in memory that these nodes can resume from; for `before`, see `resume_point`."""
    if not kept.index:
        return None
    world_size = sum(member.offer.workers for member in nodes)
    steps = kept.index.steps()
    if before is not None:
        steps = [at for at in steps if at < before and kept.protection.covers(at)]
    for at in steps:
        point = _point(kept, at) if may_be_chosen(kept, at) else None
        if point is None:
            continue
        # To check 10,000 nodes would take too long. The first and the last stand for all: if another node cannot get
        # its parts, it reports that, and the round ends.
        plan, first, last = _make_plan(kept, point), nodes[0], nodes[-1]
        ends = (first, range(first.offer.workers)), (last, range(world_size - last.offer.workers, world_size))
        if all(plan.sources(member.node, ranks, world_size) is not None for member, ranks in ends):
            return point
    return None


def may_be_chosen(kept: KeptState, at: KeptStep) -> bool:
    """Whether a step may be resumed from: ranks agree on it, and it is not spoiled."""
    return not kept.index.differs(at) and not has_spoiled(kept.run.durable, at)


def _point(kept: KeptState, at: KeptStep) -> ResumePoint | None:
    """Return a step as a point to resume from, if the nodes that can be reached have all of it."""
    members = kept.run.members
    held = {node: parts for node, parts in kept.index.holders(at).items() if is_reachable(members[node])}
    if not are_whole(held.values()):
        return None
    big = {node: part for node, parts in held.items() for part in parts if part.big}
    nodes, first_part = sorted(big), next(iter(big.values()))
    redone, named, unnamed = kept.steps_redone_from(at.step), tuple(nodes[:HOLDERS_NAMED]), len(nodes[HOLDERS_NAMED:])
    point = ResumePoint(at.round, at.step, first_part.world_size, first_part.shards, redone, named, unnamed)
    return replace(point, redone_at_least=redone is not None and kept.may_redo_more)


def is_reachable(member: Member) -> bool:
    """Whether other nodes can fetch a node's parts: it is connected, and serves them."""
    return member.is_connected and member.keeper is not None


def _make_plan(kept: KeptState, point: ResumePoint) -> ResumePlan:
    """Plan with all holders, also those that cannot be reached now, since one may have the only small state of a rank.

    A node that is sent to such a holder retries until the holder is back, or is lost and another plan is made.
    """
    return ResumePlan(point, kept.index.holders(point.at))


def plan_of_round(kept: KeptState) -> ResumePlan | None:
    """Return the plan by which nodes of the current round fetch their parts from memory; None if they fetch none now.

    The plan in `kept.plan` is reused, so that a node that has begun to fetch is not sent to other holders. A restarted
    coordinator makes none before it has heard all members: any of them may be the only holder of a rank's small state.
    """
    point, durable = kept.run.durable.resume, kept.run.durable
    if point is None or point.disk is not None or durable.stepped or not durable.state.at_work:
        return None
    return (kept.plan or _make_plan(kept, point)) if kept.index.all_heard else None


def is_obtainable(kept: KeptState) -> bool:
    """Whether all nodes of the round have, or can fetch, the state that they resume from, as far as is known."""
    resume, index = kept.run.durable.resume, kept.index
    if resume is None or kept.run.durable.stepped:
        return True  # nothing has to be fetched, or all of it was
    if resume.disk is not None or not index.all_heard:
        return True  # not known here: a node that cannot read the disk reports that
    return index.is_whole(resume.at) or all(has_restored(kept, member) for member in kept.run.roll.inside)


def has_restored(kept: KeptState, member: Member) -> bool:
    """Whether a node has all parts that its workers resume from in the current round."""
    return kept.run.is_about_round(member.observed) and member.holding.restoring is Restoring.READY


def resume_for(kept: KeptState, member: Member, goal: Goal) -> Resume | None:
    """Return the step that a node's workers resume from, and its sources; None if it begins anew or has all of it.

    It is also None while the node is not to run, and once the round has made a step.
    """
    point, assignment = kept.run.durable.resume, member.durable.assignment
    is_needed = goal is Goal.RUN and not kept.run.durable.stepped and not has_restored(kept, member)
    if point is None or assignment is None or not is_needed:
        return None
    ranks = range(assignment.first_rank, assignment.first_rank + member.offer.workers)
    wanted = _sources(kept, point, member.node, ranks, assignment.world_size)
    found = (source_of(kept.run.members[node], member, parts) for node, parts in (wanted or {}).items())
    sources = [source for source in found if source is not None]
    complete = wanted is not None and len(sources) == len(wanted)
    return Resume(
        point.round,
        point.step,
        point.world_size,
        point.shards,
        sources=tuple(sources),
        complete=complete,
        redone=point.redone,
        redone_at_least=point.redone_at_least,
        disk=point.disk,
    )


def source_of(holder: Member, member: Member, wanted: tuple[WantedParts, ...]) -> KeptSource | None:
    """Return the address and key for a node to fetch parts from a holder; None if the holder serves none."""
    keeper = holder.keeper
    if keeper is None:
        return None
    address = master_address(holder, (holder, member))  # the holder's: the node reaches it as it would a master
    return KeptSource(holder.node, address, keeper.port, keeper.key, wanted)


def _sources(
    kept: KeptState, point: ResumePoint, node: str, ranks: range, world_size: int
) -> dict[str, tuple[WantedParts, ...]] | None:
    """Return the parts that a node needs, by the node that has them: for a step on the disk, the node itself."""
    if point.disk is None:
        plan = plan_of_round(kept)
    elif (found := find_step(kept, kept.run.members[node], point)) is not None:
        # For a step of an earlier run, the point has round 0, and a plan takes only parts of the point's round.
        plan = ResumePlan(point, {node: [replace(part, round=point.round) for part in found.parts]})
    else:
        plan = None
    return None if plan is None else plan.sources(node, ranks, world_size)
