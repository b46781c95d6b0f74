"""Shortens the list of the parts of kept state that a node holds, so that its report fits into a heartbeat.

A *part* is the state that one rank keeps of one step: its shard of the big state (weights and optimizer), its small
state, or both. A node holds several of each worker. All that is held of a rank and a step becomes one entry, and so do
neighbouring ranks that hold the same.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from coordinatord.protocol.kept_state import PARTS_MAX, KeptParts


def grouped(parts: Iterable[KeptParts]) -> tuple[KeptParts, ...]:
    """Merge parts, each of one rank; return at most `PARTS_MAX` groups of consecutive ranks, the most useful first.

    Protected groups come first, since the coordinator relies on them, then those with big state, then the newest.
    """
    groups: list[KeptParts] = []
    for part in sorted(_merged(parts), key=lambda part: (part.at, part.first_rank)):
        last = groups[-1] if groups else None
        if last is not None and _continues(last, part):
            groups[-1] = replace(last, ranks=last.ranks + part.ranks)
        else:
            groups.append(part)
    return tuple(sorted(groups, key=lambda group: (group.protected, group.big, group.at), reverse=True)[:PARTS_MAX])


def _merged(parts: Iterable[KeptParts]) -> list[KeptParts]:
    """Merge parts, each of one rank, into one entry for each rank, round and step.

    A step may have its big and its small state in different places of memory. A *pending* small state was saved before
    the end of its step: it counts only if there is none from after the step.
    """
    known: dict[tuple[int, int, int], KeptParts] = {}
    for part in parts:
        key = part.round, part.step, part.first_rank
        other = known.get(key, part)
        known[key] = replace(
            part if part.big else other,  # with the digest of the big state
            big=part.big or other.big,
            small=part.small or other.small,
            pending=(part.pending or other.pending) and not (part.small or other.small),
            protected=part.protected or other.protected,
        )
    return list(known.values())


def _continues(last: KeptParts, part: KeptParts) -> bool:
    """Whether a part continues a group, by its rank and its shard."""
    rank, shard = last.first_rank + last.ranks, (last.first_shard + last.ranks) % last.shards
    is_within = rank + part.ranks <= last.world_size
    # In all other fields the two have to be equal.
    return is_within and replace(last, first_rank=rank, first_shard=shard, ranks=part.ranks) == part
