"""Whether kept parts make a step whole: each shard of its big state needs a holder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from coordinatord.protocol.kept_state import KeptParts


def shards_in(parts: KeptParts, shards: int) -> Iterator[tuple[int, int]]:
    """Return the shards that these parts have, as ranges without their ends."""
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
    """Whether these ranges cover all of so many shards."""
    reached = 0
    for begin, end in sorted(ranges):
        if begin > reached:
            break
        reached = max(reached, end)
    return reached >= shards


def are_whole(parts: Sequence[KeptParts]) -> bool:
    """Whether parts of one step have all its shards.

    Ranks that disagree on how many shards or ranks there are keep nothing that fits together.
    """
    if not parts:
        return False
    shards = parts[0].shards
    alike = all(part.shards == shards and part.world_size == parts[0].world_size for part in parts)
    return alike and cover((shard for part in parts for shard in shards_in(part, shards)), shards)


class Coverage:
    """Whether the parts of one step make it whole, kept up to date as parts come and go; see `are_whole`.

    Most parts come with a range of shards that no other part has, and are later replaced by equal ones that are
    protected. So the answer is worked out anew only if a range is new, or no part has it any more.
    """

    __slots__ = ("_breadth", "_parts", "is_whole")

    def __init__(self) -> None:
        self._parts: dict[tuple[int, int, int, int], int] = {}
        """How many parts have each range of shards, by the number of shards, the number of ranks, and the range."""
        self._breadth = 0
        """How long all of these ranges are together."""
        self.is_whole = False
        """Whether each shard has a holder."""

    def exchange(self, come: Iterable[KeptParts], gone: Iterable[KeptParts]) -> None:
        """Take in that parts of big state have come and that others have gone."""
        changes = [self._count(part, 1) for part in come]  # these first: what is only replaced then changes nothing
        changes += [self._count(part, -1) for part in gone]
        if any(changes):
            self.is_whole = self._cover_all()

    def _count(self, part: KeptParts, by: int) -> bool:
        """Count a part more or less; return whether other ranges are held now."""
        changed = False
        for begin, end in shards_in(part, part.shards):
            key = part.shards, part.world_size, begin, end
            before = self._parts.pop(key, 0)
            if before + by:
                self._parts[key] = before + by
            if not before or not before + by:
                self._breadth += by * (end - begin)
                changed = True
        return changed

    def _cover_all(self) -> bool:
        shards = next((shards for shards, _, _, _ in self._parts), 0)
        if not 0 < shards <= self._breadth or len({key[:2] for key in self._parts}) > 1:
            return False
        return cover(((begin, end) for _, _, begin, end in self._parts), shards)
