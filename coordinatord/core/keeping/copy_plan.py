"""Plans which nodes copy the parts of a step, so that it survives the loss of any one failure domain.

A failure domain has the nodes that may be lost together: those of one host, or of one topology key, such as a rack. A
shard (a piece of the state of a step) that nodes of two domains hold needs no copy. Every other shard is copied by the
*buddy* of its holder: a node of another domain.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from coordinatord.core.keeping.kept_index import PartsChange
from coordinatord.core.keeping.resume_plan import grouped
from coordinatord.core.keeping.shards import PartsByNode, are_in_two_domains, holders_by_shard
from coordinatord.protocol.kept_state import WANTED_MAX, KeptParts, KeptStep, WantedParts

TAKES_MAX = 8
"""The most nodes whose copies one node takes. Each copied node costs memory for two steps of its state, so that a small
domain cannot take the state of a large one. The taker's `--keep-memory` may allow fewer."""

NO_COPY = ""
"""Stands for the node that takes a copy where none is needed."""


@dataclass(slots=True)
class CopyPlan:
    """The copies of one step: who fetches which parts from whom. Planned when the step was found to be whole."""

    buddy_of: Mapping[str, str]
    """The node that takes the copy, by the node with the original."""
    wanted: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    """The ranks whose parts are to be copied, by the node that takes the copies and the node with the originals."""
    uncopied: int = 0
    """How many shards cannot be copied to another domain."""
    safe_by: dict[str, list[int]] = field(default_factory=dict)
    """The shards that two domains have once all copies are made, by the node that takes the copy, or `NO_COPY`."""
    domains: Mapping[str, str] = field(default_factory=dict)
    """The failure domain of each node."""

    def missing(self, node: str, held: Iterable[KeptParts]) -> dict[str, tuple[WantedParts, ...]]:
        """Return the copies that a node with the parts `held` still has to fetch, by the node to fetch from.

        If there are more groups of parts than a message may have, the rest follow when the node has the first ones.
        """
        parts = [part for part in held if part.big]
        only_big = True, False  # as `resume_plan.Kinds`
        missing = {
            source: grouped({rank: only_big for rank in ranks if not _has(parts, rank)})
            for source, ranks in self.wanted.get(node, {}).items()
        }
        return {source: wanted[:WANTED_MAX] for source, wanted in missing.items() if wanted}

    def is_made(self, held: PartsByNode, excused: Collection[str]) -> bool:
        """Whether all copies are protected, so that each shard is in two domains; `excused` nodes need none."""
        made = all(self.has_copies(node, held) for node in self.wanted if node not in excused)
        shards = [shard for taker, copied in self.safe_by.items() if taker not in excused for shard in copied]
        return made and are_in_two_domains(shards, held, self.domains)

    def has_copies(self, node: str, held: PartsByNode, only: str | None = None) -> bool:
        """Whether a node has and protects the copies that it takes of all nodes, or only of the node `only`."""
        parts = [part for part in held.get(node, ()) if part.big and part.protected]
        sources = self.wanted.get(node, {})
        return all(_has(parts, rank) for source in sources if only in {None, source} for rank in sources[source])


def plan_copies(held: PartsByNode, domains: Mapping[str, str], buddy_of: Mapping[str, str]) -> CopyPlan:
    """Plan the copies of a step, whose parts are `held`.

    A copy that is made already stays in the plan, since it has to be protected too. So a holder whose buddy has a copy
    is preferred as the source.
    """
    plan = CopyPlan(buddy_of, domains=domains)
    for shard, holding in sorted(holders_by_shard(held).items()):
        copied = [(node, rank) for node, rank in holding if (buddy_of.get(node), rank) in holding]
        if len({domains[node] for node, _ in holding}) > 1 and not copied:
            plan.safe_by.setdefault(NO_COPY, []).append(shard)
            continue
        source, rank = next((holder for holder in (*copied, *holding) if holder[0] in buddy_of), ("", 0))
        if source:
            plan.wanted.setdefault(buddy_of[source], {}).setdefault(source, []).append(rank)
            plan.safe_by.setdefault(buddy_of[source], []).append(shard)
        else:
            plan.uncopied += 1
    return plan


def _has(parts: Iterable[KeptParts], rank: int) -> bool:
    return any(part.has(rank) for part in parts)


def buddies(nodes: Mapping[str, str], spares: Mapping[str, str]) -> dict[str, str]:
    """Return which node takes the copy of each node's state, without the nodes whose copy none can take.

    Both arguments give the domain of each node: `nodes` are in the round, in the order of ranks, and `spares` wait
    outside it. Spares take copies only if the round has only one domain, because they come and go, and a copy that
    moves is made anew.

    The nodes of the round stand in a ring, domain by domain. Each is copied to the node that stands as many places
    further as the largest domain has nodes. That node is always in another domain, and each node takes one copy. If one
    domain has more than half of the nodes, its nodes and all other nodes take each other's copies in turn.
    """
    domains: dict[str, list[str]] = {}
    for node, domain in nodes.items():
        domains.setdefault(domain, []).append(node)
    if len(domains) < 2:  # noqa: PLR2004 - one domain
        return _in_turn([*nodes], [spare for spare, domain in spares.items() if domain not in domains])
    ring = [node for members in domains.values() for node in members]
    largest = max(domains.values(), key=len)
    if 2 * len(largest) <= len(ring):
        return {node: ring[(place + len(largest)) % len(ring)] for place, node in enumerate(ring)}
    others = [node for node in ring if nodes[node] != nodes[largest[0]]]
    return _in_turn(others, largest) | _in_turn(largest, others)


def _in_turn(nodes: Sequence[str], takers: Sequence[str]) -> dict[str, str]:
    """Return which taker takes the copy of each node, in turn, until each has `TAKES_MAX`."""
    return {node: takers[place % len(takers)] for place, node in enumerate(nodes[: TAKES_MAX * len(takers)])}


class CopyPlans:
    """The planned copies of a run's protected steps, which nodes do not overwrite, and why copies cannot be made."""

    def __init__(self) -> None:
        self.plans: dict[KeptStep, CopyPlan] = {}
        """The plan of each protected step; a candidate without a plan waits for one."""
        self.are_outdated = True
        """Whether copies have to be planned, since a node has come or gone or a round has begun. While the round
        runs, they are planned at the next report of any node."""
        self.problems: dict[str, str] = {}
        """Why nodes cannot fetch their copies, such as for lack of memory, by node; no step waits for these copies."""
        self._domains: Mapping[str, str] = {}
        """The failure domain of each node, by the last plan. It stays while no round runs, since copies stay too."""

    def record_problem(self, node: str, why: str) -> bool:
        """Record why a node cannot have its copies, empty if it can; return whether that has changed."""
        before = self.problems.pop(node, "")
        if why:
            self.problems[node] = why
        return why != before

    def add(self, at: KeptStep, plan: CopyPlan) -> None:
        """Add the plan of a step."""
        self.plans[at], self._domains = plan, plan.domains

    def drop_outdated(self, node: str, change: PartsChange) -> None:
        """Drop the plan of a step if parts are gone, or a new holder may make a copy needless, or possible.

        While the round runs, `holdings` makes a new plan right after. A new holder that takes copies changes nothing,
        since it has only fetched what the plan gives it. Where no copy is wanted, as with DDP on several hosts, no new
        holder changes anything.
        """
        plan = self.plans.get(change.at)
        if plan is None:
            return
        may_save_a_copy = change.is_new and node not in plan.wanted and bool(plan.wanted or plan.uncopied)
        if change.lost or may_save_a_copy:
            del self.plans[change.at]

    def drop_all(self) -> None:
        """Drop all plans: other nodes may take the copies, or have to."""
        self.plans.clear()
        self.are_outdated = True

    def begin_round(self) -> None:
        """Drop all plans and domains: the nodes of the round may have other topology keys."""
        self.drop_all()
        self._domains = {}

    def retain(self, steps: Collection[KeptStep]) -> None:
        """Drop the plans of all other steps."""
        self.plans = {at: plan for at, plan in self.plans.items() if at in steps}

    def survives_any_loss(self, held: PartsByNode) -> bool:
        """Whether a step with these parts survives the loss of all hosts of any one failure domain."""
        shards = next((part.shards for parts in held.values() for part in parts), 0)
        return shards > 0 and are_in_two_domains(range(shards), held, self._domains)
