"""Decides whether parts of kept state make a step whole: each shard of its big state needs a holder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from coordinatord.protocol.kept_state import KeptParts


def shards_in(parts: KeptParts, shards: int) -> Iterator[tuple[int, int]]:
    """Yield the shards of these parts as ranges `[begin, end)`; none if they belong to another number of shards."""
    if not parts.big or parts.shards != shards:
        return
    end = parts.first_shard + parts.ranks
    if parts.ranks >= shards:
        yield 0, shards
    elif end <= shards:
        yield parts.first_shard, end
    else:
        yield parts.first_shard, shards
        yield 0, end - shards


def cover(ranges: Iterable[tuple[int, int]], shards: int) -> bool:
    """Whether these ranges `[begin, end)` cover all of so many shards."""
    reached = 0
    for begin, end in sorted(ranges):
        if begin > reached:
            break
        reached = max(reached, end)
    return reached >= shards


def are_whole(held: Iterable[Iterable[KeptParts]]) -> bool:
    """Whether nodes hold all shards of a step, by their parts of it, and agree on how many shards and ranks it has."""
    big = [part for parts in held for part in parts if part.big]
    if len({(part.shards, part.world_size) for part in big}) != 1:
        return False
    shards = big[0].shards
    return cover((shard for part in big for shard in shards_in(part, shards)), shards)


class Coverage:
    """Whether the parts of one step make it whole, as `are_whole` decides, at a low cost for each change.

    Most parts are replaced by equal ones that are protected. So `is_whole` is computed anew only if a range of shards
    is new, or no part has it any more.
    """

    __slots__ = ("_parts", "_total_length", "is_whole")

    def __init__(self) -> None:
        self._parts: dict[tuple[int, int, int, int], int] = {}
        """The number of parts with each range, by the number of shards, the number of ranks, and the range."""
        self._total_length = 0
        """The length of all of these ranges together: while it is too small, the ranges need not be sorted."""
        self.is_whole = False

    def replace(self, old: Iterable[KeptParts], new: Iterable[KeptParts]) -> None:
        """Replace parts of big state."""
        changes = [self._count(part, 1) for part in new]  # new ones first, so that an equal part changes nothing
        changes += [self._count(part, -1) for part in old]
        if any(changes):
            self.is_whole = self._cover_all()

    def _count(self, part: KeptParts, by: int) -> bool:
        """Add `by` to the count of a part's ranges; return whether a range is new, or no part has it any more."""
        changed = False
        for begin, end in shards_in(part, part.shards):
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
