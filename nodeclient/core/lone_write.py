"""What a node writes to the disk by itself, because it is about to end with its memory, and no coordinator decides.

It writes a step only if it has the whole step: another node's part could be of another training by then. Where all
nodes have the same state, several may write at once. So each writes files of its own, and the first one that has all of
them on the disk makes the step whole.
"""

from __future__ import annotations

from collections.abc import Iterable

from coordinatord.protocol.fields import Name
from coordinatord.protocol.frozen_class import frozen
from coordinatord.protocol.kept_parts import KeptParts, KeptStep, WantedParts
from coordinatord.protocol.persisted_state import PersistedStep, PersistOrder


@frozen
class NewestOnDisk:
    """The newest whole step on the disk."""

    run: Name
    at: KeptStep
    serial: int


def lone_order(parts: Iterable[KeptParts], persisted: Iterable[PersistedStep], run: str) -> PersistOrder | None:
    """Return the order to write the newest step of a run that a node has whole.

    Return None if the node has no whole step, or if the disk has one as new. `parts` are what the node holds, each of
    one rank, and `persisted` are the steps on the disk.
    """
    held = _newer(parts, persisted, run)
    at = max((at for at, parts_at in held.items() if _are_whole(parts_at)), default=None)
    if at is None:
        return None
    writers: dict[int, int] = {}
    for part in sorted(held[at], key=lambda part: part.first_rank):
        if part.big:
            writers.setdefault(part.first_shard, part.first_rank)
    ranks = {part.first_rank: (part.first_rank in writers.values(), part.small) for part in held[at]}
    wanted = tuple(WantedParts(rank, 1, big, small) for rank, (big, small) in sorted(ranks.items()) if big or small)
    first = held[at][0]
    small = sum(part.small for part in wanted)
    return PersistOrder(at.round, at.step, first.world_size, first.shards, wanted, commit=True, small=small)


def newest_in_part(parts: Iterable[KeptParts], persisted: Iterable[PersistedStep], run: str) -> KeptStep | None:
    """Return the newest step of a run of which a node has big state, if it is newer than those on the disk."""
    held = _newer(parts, persisted, run)
    return max((at for at, parts_at in held.items() if any(part.big for part in parts_at)), default=None)


def _newer(parts: Iterable[KeptParts], persisted: Iterable[PersistedStep], run: str) -> dict[KeptStep, list[KeptParts]]:
    """Return what a node holds of the steps that are newer than all of its run on the disk.

    Steps of round 0 are left out: they came from the disk.
    """
    newest = max((step.at for step in persisted if step.run == run), default=None)
    held: dict[KeptStep, list[KeptParts]] = {}
    for part in parts:
        if part.at.round > 0 and (newest is None or part.at > newest):
            held.setdefault(part.at, []).append(part)
    return held


def _are_whole(parts: list[KeptParts]) -> bool:
    first = parts[0]
    alike = all((part.world_size, part.shards) == (first.world_size, first.shards) for part in parts)
    held = {(part.first_shard, part.digest) for part in parts if part.big}  # ranks with the same shard agree on it
    return alike and sorted(shard for shard, _ in held) == [*range(first.shards)]


def may_become_newest(at: KeptStep, run: str, newest: NewestOnDisk | None, before: int) -> bool:
    """Whether a step may become the newest one on the disk, where `newest` is now; others may have written meanwhile.

    `before` is the serial of the newest step when the node began with its run. A step of another run with a higher
    serial is newer in any case: that run has taken the place of this one.
    """
    if newest is None:
        return True
    return newest.at < at if newest.run == run else newest.serial <= before
