"""Numbers the parts of a checkpoint that `torch.distributed.checkpoint` saves, so that it is known what is whole.

Ranks whose plans have the same items have the same part. A rank does not know what the others have, and torch's global
plan no longer shows it: there, each item that several ranks have is left to one of them. So each rank says of its own
plan what it has, and the rank that sees all of them tells each which part that is, of how many. What is said travels
with the plans.

torch may keep plans and leave out those that have not changed. Then not all ranks hear of a number, and each counts as
one that has a part of its own. That is always right, but the loss of a host costs more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

from torch.distributed.checkpoint.planner import SavePlan, WriteItem


@dataclass(frozen=True, slots=True)
class OwnItems:
    """What a rank says of its plan."""

    save: int
    """The number of this save in its process: what comes back of an earlier one is told apart by that."""
    digest: bytes
    """It is the same for two ranks if both have the same names and pieces."""


@dataclass(frozen=True, slots=True)
class PartNumber:
    """What a rank hears: which part it has, of how many."""

    save: int
    shard: int
    shards: int


def own_items(save: int, items: Iterable[WriteItem]) -> OwnItems:
    """Return what a rank says of the items of its own plan."""
    names = sorted((item.index.fqn, tuple(item.index.offset or ())) for item in items)
    return OwnItems(save, hashlib.blake2b(repr(names).encode(), digest_size=16).digest())


def number_parts(plans: list[SavePlan]) -> list[SavePlan]:
    """Return the plans of all ranks with the numbers of their parts; without any unless all ranks hear of theirs."""
    said = [plan.storage_data for plan in plans if plan.usable and isinstance(plan.storage_data, OwnItems)]
    if len(said) < len(plans):
        return [replace(plan, storage_data=None) for plan in plans]
    numbers: dict[bytes, int] = {}
    for own in said:
        numbers.setdefault(own.digest, len(numbers))
    return [
        replace(plan, storage_data=PartNumber(own.save, numbers[own.digest], len(numbers)))
        for plan, own in zip(plans, said, strict=True)
    ]
