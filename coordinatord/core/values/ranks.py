"""Deals out ranks: one pure function, so that everybody can foresee it.

Survivors keep their order, so rank 0 stays where it was if its node lives. New nodes follow, by topology key, then by
host name in natural order (`node2` before `node10`, which torchrun sorts the other way round). A new node whose user
asks for a group rank gets it, or the next that is left; in the first round of a run, all are new.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Sequence
from functools import lru_cache

from coordinatord.protocol.fields import Count, Name
from coordinatord.protocol.frozen_class import frozen

_DIGITS = re.compile(r"(\d+)")

KEYS_MAX = 65_536
"""Sort keys that are remembered: three texts for each of 20,000 nodes, the coordinator's limit. They are sorted for the
reason of a round, for its ranks, and again in every later round."""


@frozen
class Seat:
    """A node that gets ranks."""

    node: str
    host: str
    topology: str
    workers: int
    role: str
    wish: int | None
    """The group rank that its user asks for."""


@frozen
class Ranks:
    """The ranks of one node's workers: from `first_rank` upward, in the order of their local ranks."""

    node: Name
    group_rank: Count
    first_rank: Count
    workers: Count
    first_role_rank: Count
    role_world_size: Count


def order(seats: Collection[Seat], previous: Sequence[str]) -> list[Seat]:
    """Put nodes into the order of their group ranks.

    `previous` are the node ids of the last round, in its order.
    """
    place = {node: index for index, node in enumerate(previous)}
    survivors = sorted((seat for seat in seats if seat.node in place), key=lambda seat: place[seat.node])
    newcomers = sorted(
        (seat for seat in seats if seat.node not in place),
        key=lambda seat: (natural(seat.topology), natural(seat.host), natural(seat.node)),
    )
    return survivors + _honour_wishes(newcomers, first=len(survivors))


def _honour_wishes(by_custom: list[Seat], first: int) -> list[Seat]:
    """Put nodes that ask for a rank at its place, or as near after it as other such nodes allow.

    `first` is the group rank of the first of these nodes.
    """
    wishers = deque(sorted((seat for seat in by_custom if seat.wish is not None), key=lambda seat: seat.wish or 0))
    others = deque(seat for seat in by_custom if seat.wish is None)
    ordered: list[Seat] = []
    while wishers or others:
        due = wishers and (not others or (wishers[0].wish or 0) <= first + len(ordered))
        ordered.append((wishers if due else others).popleft())
    return ordered


def assign(ordered: Sequence[Seat]) -> list[Ranks]:
    """Give ranks 0, 1, 2, ... to the workers of `ordered` nodes, which may bring different numbers and roles."""
    role_sizes: dict[str, int] = {}
    for seat in ordered:
        role_sizes[seat.role] = role_sizes.get(seat.role, 0) + seat.workers
    first_rank = 0
    role_ranks = dict.fromkeys(role_sizes, 0)
    ranks = []
    for group_rank, seat in enumerate(ordered):
        ranks.append(
            Ranks(
                node=seat.node,
                group_rank=group_rank,
                first_rank=first_rank,
                workers=seat.workers,
                first_role_rank=role_ranks[seat.role],
                role_world_size=role_sizes[seat.role],
            )
        )
        first_rank += seat.workers
        role_ranks[seat.role] += seat.workers
    return ranks


@lru_cache(KEYS_MAX)
def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key by which numbers within a text count as numbers."""
    return tuple(
        (0, int(part), part) if part.isdecimal() and part.isascii() else (1, 0, part)
        for part in _DIGITS.split(text)
        if part
    )
