"""Merges the parts that a node keeps, and groups them for the protocol."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from coordinatord.protocol.kept_state import PARTS_MAX, KeptParts


def merged(parts: Iterable[KeptParts]) -> list[KeptParts]:
    """Return one entry for each rank and step; each of `parts` is of one rank, from one place.

    A rank may have the big state of a step in one place and the small one in another. A small state from after the step
    replaces a pending one, which is from within the step.
    """
    known: dict[tuple[int, int, int], KeptParts] = {}
    for part in parts:
        key = part.round, part.step, part.first_rank
        other = known.get(key, part)
        known[key] = replace(
            part if part.big else other,
            big=part.big or other.big,
            small=part.small or other.small,
            pending=(part.pending or other.pending) and not (part.small or other.small),
            protected=part.protected or other.protected,
        )
    return list(known.values())


def grouped(parts: Iterable[KeptParts]) -> tuple[KeptParts, ...]:
    """Return the same parts as groups of consecutive ranks, at most `PARTS_MAX`.

    The first groups are those that are protected, then those with big state, and of these the newest ones.
    """
    groups: list[KeptParts] = []
    for part in sorted(parts, key=lambda part: (part.at, part.first_rank)):
        last = groups[-1] if groups else None
        if last is not None and _continues(last, part):
            groups[-1] = replace(last, ranks=last.ranks + part.ranks)
        else:
            groups.append(part)
    return tuple(sorted(groups, key=lambda group: (group.protected, group.big, group.at), reverse=True)[:PARTS_MAX])


def _continues(last: KeptParts, part: KeptParts) -> bool:
    """Whether a part begins where a group ends, in ranks and in shards."""
    rank, shard = last.first_rank + last.ranks, (last.first_shard + last.ranks) % last.shards
    is_within = rank + part.ranks <= last.world_size
    return is_within and replace(last, first_rank=rank, first_shard=shard, ranks=part.ranks) == part
