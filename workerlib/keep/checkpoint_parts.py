"""Numbers the parts of a checkpoint that `torch.distributed.checkpoint` saves, so that a whole one is recognised.

Ranks whose plans have the same items have the same part. A rank does not know the items of others, and torch's global
plan no longer shows them: it leaves each item that several ranks have to one of them. So each rank adds a digest of its
items to its own plan, and the rank that gets all plans adds the number of each part, and how many parts there are.

torch may leave out plans that have not changed. Then not all ranks get a number, and each counts as one with a part of
its own. That is always correct, but the loss of a host costs more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

from torch.distributed.checkpoint.planner import SavePlan, WriteItem


@dataclass(frozen=True, slots=True)
class OwnItems:
    """A rank's description of its plan."""

    save: int
    """The number of this save in its process, which distinguishes the answer from that to an earlier save."""
    digest: bytes
    """A hash of the names and pieces, which is the same for two ranks that have the same ones."""


@dataclass(frozen=True, slots=True)
class PartNumber:
    """The number of a rank's part, and how many parts there are."""

    save: int
    shard: int
    shards: int


def own_items(save: int, items: Iterable[WriteItem]) -> OwnItems:
    """Return a rank's description of the items of its own plan."""
    names = sorted((item.index.fqn, tuple(item.index.offset or ())) for item in items)
    return OwnItems(save, hashlib.blake2b(repr(names).encode(), digest_size=16).digest())


def number_parts(plans: list[SavePlan]) -> list[SavePlan]:
    """Return the plans of all ranks with the numbers of their parts; without numbers if any plan is left out."""
    described = [plan.storage_data for plan in plans if plan.usable and isinstance(plan.storage_data, OwnItems)]
    if len(described) < len(plans):
        return [replace(plan, storage_data=None) for plan in plans]
    numbers: dict[bytes, int] = {}
    for own in described:
        numbers.setdefault(own.digest, len(numbers))
    return [
        replace(plan, storage_data=PartNumber(own.save, numbers[own.digest], len(numbers)))
        for plan, own in zip(plans, described, strict=True)
    ]
