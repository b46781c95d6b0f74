"""Protects a step against the loss of a host: decides which nodes copy it, and tells each node what to fetch.

Agents fetch copies in the background, and only while the round runs. `copy_plan` has the choice of the nodes.
"""

from __future__ import annotations

from collections.abc import Iterable

from coordinatord.core.keeping.copy_plan import CopyPlan, buddies, plan_copies
from coordinatord.core.keeping.known import KeptState
from coordinatord.core.keeping.resume_choice import is_reachable, source_of
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import Member
from coordinatord.protocol.fields import SENTENCE_MAX
from coordinatord.protocol.kept_state import COPIES_MAX, KeptCopy, KeptStep
from coordinatord.protocol.text import clip

NAMED_MAX = 3
"""The most nodes whose problems one text names."""


def plan_for(kept: KeptState, at: KeptStep) -> CopyPlan:
    """Plan the copies of a step among the nodes of the current round and the spares.

    Nodes that take no copies for others are left out of the pairs, so nobody copies their state either.
    """
    takers = [member for member in kept.run.members.values() if is_reachable(member) and _takes_copies(member)]
    ranked = ((member.durable.assignment.group_rank, member.node) for member in takers if member.durable.assignment)
    inside = [node for _, node in sorted(ranked)]
    spares = [member.node for member in takers if member.durable.assignment is None and not member.leaves]
    domains = _domains(kept)
    buddy_of = buddies({node: domains[node] for node in inside}, {node: domains[node] for node in spares})
    held = {node: parts for node, parts in kept.index.holders(at).items() if node in domains}
    return plan_copies(held, domains, buddy_of)


def _domains(kept: KeptState) -> dict[str, str]:
    """Return the failure domain of each member: its topology key; its host if it has none, or the round has one key."""
    keys = {member.offer.topology for member in kept.run.roll.inside}
    by_host = len(keys) < 2  # noqa: PLR2004 - two domains
    return {
        node: f"host {member.offer.host}" if by_host or not member.offer.topology else member.offer.topology
        for node, member in kept.run.members.items()
    }


def copies_for(kept: KeptState, member: Member) -> tuple[KeptCopy, ...]:
    """Return the copies that a node has to fetch now, those of the newest step first.

    A copy that it has is not among them: the node keeps it for as long as its step is protected.
    """
    if kept.run.durable.state is not State.RUNNING:
        return ()
    copies = []
    for at, plan in kept.copies.plans.items():
        for node, wanted in plan.missing(member.node, kept.index.holders(at).get(member.node, ())).items():
            holder = kept.run.members.get(node)
            source = None if holder is None or not is_reachable(holder) else source_of(holder, member, wanted)
            if source is not None:
                copies.append(KeptCopy(at.round, at.step, source))
    return tuple(sorted(copies, key=lambda copy: copy.at, reverse=True)[:COPIES_MAX])


def copy_problem(kept: KeptState) -> str:
    """Return why some state stays in one failure domain; empty if copies are made, or there is only one domain."""
    if refusals := _refusals(kept):
        return refusals
    if not any(plan.uncopied for plan in kept.copies.plans.values()) or len({*_domains(kept).values()}) == 1:
        return ""
    return _unwilling(kept.run.roll.inside) or "there is no node on another host"


def why_uncopied(kept: KeptState) -> str:
    """Return why the state of lost nodes had no copies on another host; empty if it had, or none of the round is lost.

    The plans of the copies are gone with the nodes.
    """
    durable, members = kept.run.durable, kept.run.members
    if not durable.losses:
        return ""
    host_of = {loss.node: loss.host for loss in durable.lost}  # `losses` has no hosts
    host_of |= {node: member.offer.host for node, member in members.items()}
    if len({host_of.get(node) for node in durable.order}) == 1:
        return f"all nodes of round {durable.round} were on one host"
    return _refusals(kept) or _unwilling(members[node] for node in durable.order if node in members)


def _refusals(kept: KeptState) -> str:
    """Name nodes that could not fetch their copies, and why; empty if all could."""
    refusals = [f"node {node}: {why}" for node, why in kept.copies.problems.items() if node in kept.run.members]
    return clip("; ".join(refusals[:NAMED_MAX]), SENTENCE_MAX)


def _unwilling(members: Iterable[Member]) -> str:
    """Name the first of these nodes that is not to keep copies; empty if all are."""
    node = next((member.node for member in members if not _takes_copies(member)), "")
    return f"node {node} takes no copies, by its --keep-memory or --keep-rate" if node else ""


def _takes_copies(member: Member) -> bool:
    return member.keeper is not None and member.keeper.takes_copies
