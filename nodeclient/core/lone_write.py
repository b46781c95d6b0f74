"""What a node writes to the disk by itself: it is about to end, memory goes with it, and no coordinator decides.

It writes a step only if it has all of it: another node's part could be of another training by then. Where all nodes
have the same state, several may do that at once, so each writes files of its own, and the first one that has all of
them on the disk makes the step whole.
"""

from __future__ import annotations

from collections.abc import Iterable

from coordinatord.protocol.fields import Name
from coordinatord.protocol.frozen_class import frozen
from coordinatord.protocol.kept_parts import KeptParts, KeptStep, WantedParts
from coordinatord.protocol.persisted_state import PersistedStep, PersistOrder


@frozen
class NewestThere:
    """The newest whole step on the disk."""

    run: Name
    at: KeptStep
    serial: int


def lone_order(parts: Iterable[KeptParts], there: Iterable[PersistedStep], run: str) -> PersistOrder | None:
    """Return what to write of the newest step of a run that a node has whole; None if the disk has a step as new.

    `parts` are what the node holds, each of one rank, and `there` the steps on the disk. A step of round 0 came from
    the disk. None is returned as well if the node has no step whole.
    """
    held = _newer(parts, there, run)
    at = max((at for at, some in held.items() if _are_whole(some)), default=None)
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


def newest_in_part(parts: Iterable[KeptParts], there: Iterable[PersistedStep], run: str) -> KeptStep | None:
    """Return the newest step of a run of which a node has big state, and nothing as new is on the disk."""
    held = _newer(parts, there, run)
    return max((at for at, some in held.items() if any(part.big for part in some)), default=None)


def _newer(parts: Iterable[KeptParts], there: Iterable[PersistedStep], run: str) -> dict[KeptStep, list[KeptParts]]:
    """Return what a node holds of the steps that are newer than all of its run on the disk."""
    done = max((persisted.at for persisted in there if persisted.run == run), default=None)
    held: dict[KeptStep, list[KeptParts]] = {}
    for part in parts:
        if part.at.round > 0 and (done is None or part.at > done):
            held.setdefault(part.at, []).append(part)
    return held


def _are_whole(parts: list[KeptParts]) -> bool:
    first = parts[0]
    alike = all((part.world_size, part.shards) == (first.world_size, first.shards) for part in parts)
    return alike and {part.first_shard for part in parts if part.big} == {*range(first.shards)}


def may_become_newest(at: KeptStep, run: str, newest: NewestThere | None, before: int) -> bool:
    """Whether a step may become the newest one on the disk, although a coordinator may have had others written there.

    `before` is the serial of the newest one when the node began with its run. What another run has written since then
    is newer in any case: that run has taken the place of this one.
    """
    if newest is None:
        return True
    return newest.at < at if newest.run == run else newest.serial <= before
