"""Plans from which nodes each node of a round fetches the parts that its workers resume from.

* Of the big state (weights, the optimizer's state), each rank needs its own shard if there are as many ranks as before.
  Otherwise the state is divided anew, and each rank needs all shards. If no node has anything of a rank, nothing tells
  which shard that rank had, so its node fetches all shards too.
* Of the small state (buffers, numbers, random state), each rank needs its own, if a node has it: a new rank has none.
  The small state is *pending* if the rank may have been stopped within the step: then it lacks the numbers that the
  rest of the step would have changed. A rank takes what it lacks from a complete small state of any rank. The workers
  of a node share all that the node has, so one complete state is enough for all of them. If none of them has its own
  complete one, the node fetches another rank's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import groupby, islice

from coordinatord.core.rounds.values.resume_point import ResumePoint
from coordinatord.protocol.kept_state import SOURCES_MAX, WANTED_MAX, KeptParts, WantedParts

Kinds = tuple[bool, bool]
"""Whether a rank's big state is wanted, and whether its small state is."""

Needs = dict[str, dict[int, Kinds]]
"""The wanted state of each rank, by the node to fetch it from."""


class ResumePlan:
    """The holders of the parts of one step, and who of them gives what to whom in a round.

    It is made once for a round, and asked for each node. So the holders are indexed by rank and by shard.
    """

    def __init__(self, point: ResumePoint, holders: Mapping[str, Iterable[KeptParts]]) -> None:
        """Index the parts of the step that these nodes have.

        The point has the number of shards that reachable nodes had when it was chosen. Big state of a holder with
        another number of shards does not fit, see `shards.are_whole`. Its small state does: that belongs to a rank.
        """
        self._point = point
        self.at = point.at
        self.held = {node: tuple(part for part in parts if part.at == point.at) for node, parts in holders.items()}
        """The parts of the step that nodes held when this plan was made, by node."""
        everything = [(node, part) for node, parts in self.held.items() for part in parts]
        self._big = _Holders((node, part) for node, part in everything if part.big and part.shards == point.shards)
        self._small = _Holders((node, part) for node, part in everything if part.small)
        self._pending = _Holders((node, part) for node, part in everything if part.pending)

    def sources(self, node: str, ranks: range, world_size: int) -> dict[str, tuple[WantedParts, ...]] | None:
        """Return the parts that a node with these ranks fetches, by the node to fetch from.

        A part that the node has itself is among them, with the node as its own source. Return None if a shard has no
        holder, or if there are more sources or groups of parts than a message may have.
        """
        node_number = ranks.start // max(1, len(ranks))  # roughly: nodes may have different numbers of ranks
        # By its turn, each node takes other holders, so that none has to serve all. If these are more sources than a
        # message may have, turn 0 takes the first holder of each shard, which may be fewer nodes.
        for turn in (node_number, 0):
            sources = self._sources(node, ranks, world_size, turn)
            if sources is not None:
                return sources
        return None

    def _sources(
        self, node: str, ranks: range, world_size: int, turn: int
    ) -> dict[str, tuple[WantedParts, ...]] | None:
        needs: Needs = {}
        if not all(self._add_shard(needs, node, shard, turn) for shard in self._shards_for(ranks, world_size)):
            return None
        are_complete = [self._add_small(needs, node, rank) for rank in ranks]
        if not any(are_complete):
            self._add_any_small(needs, node)
        sources = {source: grouped(wanted) for source, wanted in needs.items()}
        fits = len(sources) <= SOURCES_MAX and all(len(wanted) <= WANTED_MAX for wanted in sources.values())
        return sources if fits else None

    def _shards_for(self, ranks: range, world_size: int) -> Iterable[int]:
        """Return the shards that a node with these ranks needs: all, unless it is known which shards its ranks had."""
        if self._point.shards > 1 and world_size == self._point.world_size:
            shards = [self._shard_of(rank) for rank in ranks]
            known = dict.fromkeys(shard for shard in shards if shard is not None)
            if None not in shards:
                return known
        return range(self._point.shards)

    def _shard_of(self, rank: int) -> int | None:
        """Return the shard that a rank had in the round of the step; None if no part of that rank tells."""
        for holders in (self._big, self._small, self._pending):
            holder = holders.of_rank(rank)
            if holder is not None and holder[1].shards == self._point.shards:
                part = holder[1]
                return (part.first_shard + rank - part.first_rank) % part.shards
        return None

    def _add_shard(self, needs: Needs, node: str, shard: int, turn: int) -> bool:
        """Add a shard that the node has itself, or else fetches from a holder; return whether any node has it.

        A node whose `turn` is 1 fetches from the second holder.
        """
        own = (part for part in self.held.get(node, ()) if part.big and part.shards == self._point.shards)
        rank = next((rank for part in own if (rank := _rank_with(part, shard)) is not None), None)
        if rank is not None:
            need(needs, node, rank, big=True)
            return True
        holders = self._big.by_shard.get(shard)
        if not holders:
            return False
        source, rank = holders[turn % len(holders)]
        need(needs, source, rank, big=True)
        return True

    def _add_small(self, needs: Needs, node: str, rank: int) -> bool:
        """Add the small state of a rank, if any node has it; return whether it has, and it is not pending."""
        for holders, is_complete in ((self._small, True), (self._pending, False)):
            holder = holders.of_rank(rank, node)
            if holder is not None:
                need(needs, holder[0], rank, small=True)
                return is_complete
        return False

    def _add_any_small(self, needs: Needs, node: str) -> None:
        """Add one small state that is not pending: one that the node has, or else that of the lowest rank."""
        own = ((node, part) for part in self.held.get(node, ()) if part.small)
        holder = next(own, self._small.first)
        if holder is not None:
            need(needs, holder[0], holder[1].first_rank, small=True)


class _Holders:
    """The holders of one kind of parts (big, small or pending), by rank and by shard."""

    def __init__(self, held: Iterable[tuple[str, KeptParts]]) -> None:
        self._held = sorted(held, key=lambda holder: holder[1].first_rank)
        self._begins = [part.first_rank for _, part in self._held]
        self._longest = max((part.ranks for _, part in self._held), default=0)

    @property
    def first(self) -> tuple[str, KeptParts] | None:
        """The holder of the lowest rank."""
        return self._held[0] if self._held else None

    def of_rank(self, rank: int, preferred: str = "") -> tuple[str, KeptParts] | None:
        """Return a holder of a rank's part: the preferred node if it has it, else any; None if there is none.

        A group of parts with the rank begins at most `_longest` ranks before it, so only those are looked at.
        """
        chosen = None
        for place in range(bisect_right(self._begins, rank) - 1, -1, -1):
            holder = self._held[place]
            begin = holder[1].first_rank
            if begin + self._longest <= rank:
                break
            if rank < begin + holder[1].ranks:
                chosen = holder
                if not preferred or holder[0] == preferred:
                    break
        return chosen

    @cached_property
    def by_shard(self) -> dict[int, list[tuple[str, int]]]:
        """The nodes that have each shard, each with a rank that has it."""
        holders: dict[int, list[tuple[str, int]]] = {}
        for node, part in self._held:
            for shard, rank in islice(part.shards_and_ranks(), part.shards):  # more would repeat shards
                holders.setdefault(shard, []).append((node, rank))
        return holders


def _rank_with(part: KeptParts, shard: int) -> int | None:
    """Return the first rank of these parts that has a shard; None if none has it."""
    offset = (shard - part.first_shard) % part.shards
    return part.first_rank + offset if offset < part.ranks else None


def need(needs: Needs, node: str, rank: int, *, big: bool = False, small: bool = False) -> None:
    """Add the big or the small state of a rank to `needs`, to be fetched from a node."""
    wanted = needs.setdefault(node, {})
    had_big, had_small = wanted.get(rank, (False, False))
    wanted[rank] = (had_big or big, had_small or small)


def grouped(wanted: Mapping[int, Kinds]) -> tuple[WantedParts, ...]:
    """Group consecutive ranks of which the same kinds of state are wanted, as messages have them."""
    groups = []
    ordered = enumerate(sorted(wanted.items()))  # along consecutive ranks, a rank minus its place stays the same
    for (_, (big, small)), members in groupby(ordered, key=lambda item: (item[1][0] - item[0], item[1][1])):
        ranks = [rank for _, (rank, _) in members]
        groups.append(WantedParts(ranks[0], len(ranks), big, small))
    return tuple(groups)
