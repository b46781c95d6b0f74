"""Plans which nodes keep copies of one step, so that it outlives the hosts of any one failure domain.

A shard that nodes of two domains hold needs no copy. Every other shard is copied from a node that holds it to that
node's buddy (`buddies`), with the small state that lies beside it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from coordinatord.core.keeping.resume_plan import grouped
from coordinatord.protocol.kept_state import WANTED_MAX, KeptParts, WantedParts

Held = Mapping[str, Collection[KeptParts]]
"""The parts of one step, by the node that holds them."""


@dataclass(slots=True)
class CopyPlan:
    """The copies of one step, as of when it was found to be whole."""

    pairs: Mapping[str, str]
    """The node that takes a copy, by the node whose state it is."""
    wanted: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    """The ranks whose parts are to be copied, by the node that gets the copies and the node that has the parts."""
    uncopied: int = 0
    """How many shards cannot be copied to another domain."""
    safe_by: dict[str, list[int]] = field(default_factory=dict)
    """The shards that nodes of two domains will have, by the node that takes the copy: "" where none is needed."""
    domains: Mapping[str, str] = field(default_factory=dict)
    """The failure domain of each node."""

    def missing(self, node: str, held: Iterable[KeptParts]) -> dict[str, tuple[WantedParts, ...]]:
        """Return what a node still has to get, by the node that has it; `held` are the parts that it has itself."""
        parts = [part for part in held if part.big]
        missing = {
            source: grouped({rank: (True, False) for rank in ranks if not _has(parts, rank)})
            for source, ranks in self.wanted.get(node, {}).items()
        }
        return {source: wanted[:WANTED_MAX] for source, wanted in missing.items() if wanted}

    def is_made(self, held: Held, excused: Collection[str] = ()) -> bool:
        """Whether each node has its copies, or is excused, and two domains protect each shard of the others."""
        made = all(self.has_copies(node, held) for node in self.wanted if node not in excused)
        shards = [shard for taker, copied in self.safe_by.items() if taker not in excused for shard in copied]
        return made and are_protected_twice(shards, held, self.domains)

    def has_copies(self, node: str, held: Held, only: str | None = None) -> bool:
        """Whether a node has the copies that it is to have, of all nodes or of `only` one, and protects them."""
        parts = [part for part in held.get(node, ()) if part.big and part.protected]
        sources = self.wanted.get(node, {})
        return all(_has(parts, rank) for source in sources if only in {None, source} for rank in sources[source])


def are_protected_twice(shards: Collection[int], held: Held, domains: Mapping[str, str]) -> bool:
    """Whether nodes of two domains protect each of these shards, so that it outlives the loss of either domain."""
    once: dict[int, str] = {}
    missing = set(shards)
    for node, parts in held.items():
        if node not in domains:
            continue
        if not missing:
            break
        for part in parts:
            for shard, _ in part.shards_and_ranks() if part.big and part.protected else ():
                if once.setdefault(shard, domains[node]) != domains[node]:
                    missing.discard(shard)
    return not missing


def plan_copies(held: Held, domains: Mapping[str, str], pairs: Mapping[str, str]) -> CopyPlan:
    """Plan the copies of a step; `pairs` has the buddy of each node, if it has one."""
    plan = CopyPlan(pairs, domains=domains)
    holders: dict[int, list[tuple[str, int]]] = {}
    for node, parts in held.items():
        for part in parts:
            for shard, rank in part.shards_and_ranks() if part.big else ():
                holders.setdefault(shard, []).append((node, rank))
    for shard in sorted(holders):
        holding = holders[shard]
        copied = [(node, rank) for node, rank in holding if (pairs.get(node), rank) in holding]
        if len({domains[node] for node, _ in holding}) > 1 and not copied:
            plan.safe_by.setdefault("", []).append(shard)
            continue
        source, rank = next((holder for holder in (*copied, *holding) if holder[0] in pairs), ("", 0))
        if source:
            plan.wanted.setdefault(pairs[source], {}).setdefault(source, []).append(rank)
            plan.safe_by.setdefault(pairs[source], []).append(shard)
        else:
            plan.uncopied += 1
    return plan


def _has(parts: Iterable[KeptParts], rank: int) -> bool:
    return any(part.holds(rank) for part in parts)


TAKES_MAX = 8
"""The most nodes of which one node takes copies: each needs memory for two steps of the other's state."""


class Buddy(Struct, frozen=True):
    """A node that keeps state, and that can take copies of what others keep."""

    node: str
    domain: str


def buddies(nodes: Sequence[Buddy], spares: Sequence[Buddy] = ()) -> dict[str, str]:
    """Return which node takes the copy of each node's state. Nodes of which none can take a copy are left out.

    A copy is for the loss of a host, and of all hosts of its failure domain: those with the same topology key, or the
    host itself where a node has no key. So a node is copied to one in another domain. The nodes stand in a ring, domain
    by domain, and each is copied to the one that stands as many places further as the largest domain has nodes. That is
    always another domain, and each node takes one copy. If one domain has more than half of the nodes, the others take
    theirs in turn.

    `nodes` are in the order of their ranks. Spares have copies only where all nodes are of one domain: they come and
    go, and a copy that moves is made anew.
    """
    domains = _by_domain(nodes)
    if len(domains) > 1:
        return _within(domains)
    others = [buddy for buddy in spares if buddy.domain not in domains]
    return _in_turn(nodes, others)


def _by_domain(nodes: Sequence[Buddy]) -> dict[str, list[Buddy]]:
    domains: dict[str, list[Buddy]] = {}
    for buddy in nodes:
        domains.setdefault(buddy.domain, []).append(buddy)
    return domains


def _within(domains: dict[str, list[Buddy]]) -> dict[str, str]:
    ring = [buddy for members in domains.values() for buddy in members]
    largest = max(domains.values(), key=len)
    if 2 * len(largest) <= len(ring):
        return {buddy.node: ring[(place + len(largest)) % len(ring)].node for place, buddy in enumerate(ring)}
    others = [buddy for buddy in ring if buddy.domain != largest[0].domain]
    return _in_turn(others, largest) | _in_turn(largest, others)


def _in_turn(nodes: Sequence[Buddy], takers: Sequence[Buddy]) -> dict[str, str]:
    """Let `takers` take the copies of `nodes` in turn, until each has as many as it may."""
    taken = nodes[: TAKES_MAX * len(takers)]
    return {buddy.node: takers[place % len(takers)].node for place, buddy in enumerate(taken)}
