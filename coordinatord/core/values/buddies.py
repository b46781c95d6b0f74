"""Chooses which node keeps a copy of what another one has, by the nodes and their domains alone.

A copy is for the loss of a host, and of all hosts of its failure domain: those with the same topology key, or the host
itself where a node has no key. So a node is copied to one in another domain. The nodes stand in a ring, domain by
domain, and each is copied to the one that stands as many places further as the largest domain has nodes. That is always
another domain, and each node takes one copy. If one domain has more than half of the nodes, the others take theirs in
turn.
"""

from __future__ import annotations

from collections.abc import Sequence

from coordinatord.protocol.frozen_class import frozen

TAKES_MAX = 8
"""The most nodes of which one node takes copies: each needs memory for two steps of the other's state."""


@frozen
class Buddy:
    """A node that keeps state, and that can take copies of what others keep."""

    node: str
    domain: str


def buddies(nodes: Sequence[Buddy], spares: Sequence[Buddy] = ()) -> dict[str, str]:
    """Return which node takes the copy of each node's state. Nodes of which none can take a copy are left out.

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
