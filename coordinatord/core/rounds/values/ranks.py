"""Assigns ranks to the nodes of a round: `order` decides which node comes first, and `assign` counts.

Nodes of the last round keep their places, so rank 0 stays where it is if its node lives. New nodes fill the places of
lost ones, and further new ones come last; places that stay empty are closed up. So a spare has exactly the ranks of the
node that it replaces, and no other node moves. New nodes are in the order of their topology keys, then of their host
names in natural order (`node2` before `node10`, unlike torchrun). A new node gets the group rank that its user asks
for, or the next one that is free; in the first round of a run, all nodes are new.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, count

from msgspec import Struct

from coordinatord.protocol.fields import Count, Name
from coordinatord.protocol.schema import Strict

_DIGITS = re.compile(r"(\d+)")

KEYS_MAX = 65_536
"""The most sort keys that are cached: three texts for each of 20,000 nodes, the coordinator's limit. Nodes are sorted
to name them in the reason of a round, for its ranks, and again in every later round."""


class Seat(Struct, frozen=True):
    """The facts about a node that determine its ranks."""

    node: str
    host: str
    topology: str
    workers: int
    role: str
    wish: int | None
    """The group rank that its user asks for; None if the user asks for none."""


class Ranks(Strict, frozen=True):
    """The ranks of one node's workers: from `first_rank` upward, in the order of their local ranks."""

    node: Name
    group_rank: Count
    first_rank: Count
    workers: Count
    first_role_rank: Count
    role_world_size: Count


def order(seats: Collection[Seat], previous: Mapping[str, int]) -> list[Seat]:
    """Return the nodes in the order of their group ranks.

    `previous` has the nodes of the last round in its order, each with the number of its workers; its n-th node has the
    place n. The place of a lost node goes first to a new node with as many workers: then no rank of another node
    changes. Other new nodes get the places that are left, and then new ones at the end.
    """
    by_node = {seat.node: seat for seat in seats}
    placed = {place: by_node[node] for place, node in enumerate(previous) if node in by_node}
    newcomers = sorted(
        (seat for seat in seats if seat.node not in previous),
        key=lambda seat: (natural_key(seat.topology), natural_key(seat.host), natural_key(seat.node)),
    )
    vacant = {place: workers for place, (node, workers) in enumerate(previous.items()) if node not in by_node}
    places_with, newcomers_with = defaultdict[int, list[int]](list), defaultdict[int, list[Seat]](list)
    for place, workers in vacant.items():
        places_with[workers].append(place)
    for seat in newcomers:
        newcomers_with[seat.workers].append(seat)
    for workers, places in places_with.items():
        placed |= _fill_places(newcomers_with[workers], places)
    seated = {seat.node for seat in placed.values()}
    free = (place for place in vacant if place not in placed)
    placed |= _fill_places([seat for seat in newcomers if seat.node not in seated], chain(free, count(len(previous))))
    return [placed[place] for place in sorted(placed)]


def _fill_places(newcomers: list[Seat], places: Iterable[int]) -> dict[int, Seat]:
    """Assign places to new nodes, both in their order, until nodes or places are used up.

    A node that asks for a rank gets that place, or the next one that is free. Once only such nodes are left, they get
    the next places instead: `order` closes up empty places in any case.
    """
    wishers = deque(sorted((seat for seat in newcomers if seat.wish is not None), key=lambda seat: seat.wish or 0))
    others = deque(seat for seat in newcomers if seat.wish is None)
    filled: dict[int, Seat] = {}
    for place in places:
        if not wishers and not others:
            break
        is_wish_due = wishers and (not others or (wishers[0].wish or 0) <= place)
        filled[place] = (wishers if is_wish_due else others).popleft()
    return filled


def assign(ordered: Sequence[Seat]) -> list[Ranks]:
    """Assign ranks 0, 1, 2, ... to the workers of `ordered` nodes, whose numbers of workers and roles may differ."""
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
def natural_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that compares numbers within a text as numbers."""
    return tuple(
        (0, int(part), part) if part.isdecimal() and part.isascii() else (1, 0, part)
        for part in _DIGITS.split(text)
        if part
    )
