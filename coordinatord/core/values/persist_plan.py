"""Plans which node writes which part of a step to the disk: each part once, and no node much more than the others."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from coordinatord.core.values.resume_plan import grouped
from coordinatord.core.values.shards import are_whole
from coordinatord.protocol.kept_parts import WANTED_MAX, KeptParts, WantedParts


def plan_writes(
    holders: Mapping[str, tuple[KeptParts, ...]], leaving: Collection[str] = ()
) -> dict[str, tuple[WantedParts, ...]] | None:
    """Return what each node writes of a step; None if the holders do not have all of it.

    Of the nodes that hold a shard, the one writes it that has the least to write so far; a node that stays comes before
    one that leaves. The small state of a rank is written by the node that writes its shard, or else by another holder.
    """
    if not are_whole([part for parts in holders.values() for part in parts if part.big]):
        return None
    big: dict[int, list[tuple[str, int]]] = {}
    small: dict[int, list[str]] = {}
    for node, parts in holders.items():
        for part in parts:
            for shard, rank in part.shards_and_ranks():
                if part.big:
                    big.setdefault(shard, []).append((node, rank))
                if part.small:
                    small.setdefault(rank, []).append(node)
    wanted: dict[str, dict[int, tuple[bool, bool]]] = {}
    for shard in sorted(big):
        node, rank = min(
            big[shard], key=lambda holder: (holder[0] in leaving, len(wanted.get(holder[0], ())), holder[1])
        )
        wanted.setdefault(node, {})[rank] = (True, False)
    for rank, nodes in sorted(small.items()):
        node = min(nodes, key=lambda node: (rank not in wanted.get(node, ()), node in leaving))
        writes_big, _ = wanted.setdefault(node, {}).get(rank, (False, False))
        wanted[node][rank] = (writes_big, True)
    plan = {node: grouped(parts) for node, parts in wanted.items()}
    return plan if all(len(parts) <= WANTED_MAX for parts in plan.values()) else None
