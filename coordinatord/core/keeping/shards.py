"""Whether parts make a step whole: whether each shard of its big state has a holder.

The big state is weights and what the optimizer keeps of them. Each different piece that ranks have of it is a shard:
with DDP all ranks have the same one, with FSDP each rank its own. Nodes report parts of consecutive ranks as one group,
whose shards are consecutive too, modulo their number. So this module computes with ranges of shards `[begin, end)`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from coordinatord.protocol.kept_state import KeptParts

PartsByNode = Mapping[str, Collection[KeptParts]]
"""The parts of one step, by the node that holds them."""


def shards_in(parts: KeptParts) -> Iterator[tuple[int, int]]:
    """Yield the shards of a group of parts as ranges `[begin, end)`: two if they begin again at 0."""
    shards = parts.shards
    end = parts.first_shard + parts.ranks
    if parts.ranks >= shards:
        yield 0, shards
    elif end <= shards:
        yield parts.first_shard, end
    else:
        yield parts.first_shard, shards
        yield 0, end - shards


def cover(ranges: Iterable[tuple[int, int]], shards: int) -> bool:
    """Whether these ranges cover all of so many shards."""
    reached = 0
    for begin, end in sorted(ranges):
        if begin > reached:
            break
        reached = max(reached, end)
    return reached >= shards


def are_whole(held: Iterable[Iterable[KeptParts]]) -> bool:
    """Whether nodes hold all shards of a step, given each node's parts of it.

    Parts that differ in the number of shards or ranks are not of the same state, and make no step whole.
    """
    big = [part for parts in held for part in parts if part.big]
    if len({(part.shards, part.world_size) for part in big}) != 1:
        return False
    return cover((shard for part in big for shard in shards_in(part)), big[0].shards)


def holders_by_shard(held: PartsByNode) -> dict[int, list[tuple[str, int]]]:
    """Return the nodes that hold each shard, each with a rank that has it; a node is repeated for each rank."""
    holders: dict[int, list[tuple[str, int]]] = {}
    for node, parts in held.items():
        for part in parts:
            for shard, rank in part.shards_and_ranks() if part.big else ():
                holders.setdefault(shard, []).append((node, rank))
    return holders


def are_in_two_domains(shards: Collection[int], held: PartsByNode, domains: Mapping[str, str]) -> bool:
    """Whether nodes of two domains protect each of these shards; a node without a domain does not count."""
    first_domain: dict[int, str] = {}
    missing = set(shards)
    for node, parts in held.items():
        if not missing:
            break
        for part in parts if node in domains else ():
            for shard, _ in part.shards_and_ranks() if part.big and part.protected else ():
                if first_domain.setdefault(shard, domains[node]) != domains[node]:
                    missing.discard(shard)
    return not missing


class Coverage:
    """Whether the parts of one step make it whole, as `are_whole` decides, but at a low cost for each change.

    It is updated for each report of each of 10,000 nodes. With DDP all of these report the same range. So ranges are
    counted, and `is_whole` is computed anew only if a range is new, or no part has it any more.
    """

    __slots__ = ("_parts", "_total_length", "is_whole")

    def __init__(self) -> None:
        self._parts: dict[tuple[int, int, int, int], int] = {}
        """The number of parts with each range; a key is the number of shards, the number of ranks, begin and end."""
        self._total_length = 0
        """The length of all of these ranges together: while it is too small, the ranges need not be sorted."""
        self.is_whole = False

    def replace(self, old: Iterable[KeptParts], new: Iterable[KeptParts]) -> None:
        """Replace parts of big state."""
        changes = [self._count(part, 1) for part in new]  # new ones first, so that an equal part changes nothing
        changes += [self._count(part, -1) for part in old]
        if any(changes):
            self.is_whole = self._cover_all()

    def is_whole_without(self, parts: Iterable[KeptParts]) -> bool:
        """Whether the step stays whole without these parts, which are some of the parts that count now."""
        removed = [(part, self._count(part, -1)) for part in parts]
        is_whole = self._cover_all() if any(changed for _, changed in removed) else self.is_whole
        for part, _ in removed:
            self._count(part, 1)
        return is_whole

    def _count(self, part: KeptParts, by: int) -> bool:
        """Add `by` to the count of a part's ranges; return whether a range is new, or no part has it any more."""
        changed = False
        for begin, end in shards_in(part):
            key = part.shards, part.world_size, begin, end
            before = self._parts.pop(key, 0)
            if before + by:
                self._parts[key] = before + by
            if not before or not before + by:
                self._total_length += by * (end - begin)
                changed = True
        return changed

    def _cover_all(self) -> bool:
        shards = next((shards for shards, _, _, _ in self._parts), 0)
        if not 0 < shards <= self._total_length or len({key[:2] for key in self._parts}) > 1:
            return False
        return cover(((begin, end) for _, _, begin, end in self._parts), shards)
