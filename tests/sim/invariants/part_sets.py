"""What parts of kept state have, counted one by one, as no code of the coordinator counts it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from coordinatord.protocol.kept_state import KeptParts, KeptStep


def ranks_of(parts: Iterable[KeptParts]) -> set[int]:
    """Return the ranks of parts with big state, counted one by one."""
    return {part.first_rank + number for part in parts if part.big for number in range(part.ranks)}


def shards_of(parts: Iterable[KeptParts]) -> set[int]:
    """Return the shards of parts with big state, counted one by one."""
    return {(part.first_shard + number) % part.shards for part in parts if part.big for number in range(part.ranks)}


def differing(parts: Iterable[KeptParts]) -> set[KeptStep]:
    """Return the steps of which two parts with the same shard have different digests."""
    digests: dict[tuple[KeptStep, int], set[int | None]] = {}
    for part in parts:
        for number in range(part.ranks) if part.big and part.digest is not None else ():
            digests.setdefault((part.at, (part.first_shard + number) % part.shards), set()).add(part.digest)
    return {at for (at, _), different in digests.items() if len(different) > 1}


def is_whole(parts: list[KeptParts]) -> bool:
    """Whether parts have all shards, counted one by one."""
    shards = {part.shards for part in parts}
    return len(shards) == 1 and len(shards_of(parts)) == shards.pop()


def came_late(held: Mapping[str, Sequence[KeptParts]], node: str) -> bool:
    """Whether a node reported a step that others protect, and which all have alike, when it was the whole one already.

    It may overwrite the step until it hears of that.
    """
    protects = {name: all(part.protected for part in parts) for name, parts in held.items()}
    return not protects[node] and any(protects.values()) and all(part.shards == 1 for part in held[node])
