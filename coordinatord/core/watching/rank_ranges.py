"""Divides a question about some ranks of a job among its nodes."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Sequence
from itertools import takewhile

from coordinatord.core.rounds.values.ranks import Ranks


def merge_ranges(chosen: Iterable[range]) -> list[range]:
    """Merge ranges of ranks that overlap or touch; return them in order."""
    merged: list[range] = []
    for piece in sorted(chosen, key=lambda piece: piece.start):
        if merged and piece.start <= merged[-1].stop:
            merged[-1] = range(merged[-1].start, max(merged[-1].stop, piece.stop))
        else:
            merged.append(piece)
    return merged


def select_ranks(ranks: Ranks, wanted: Sequence[range]) -> list[range]:
    """Return which of the `wanted` ranks (merged ranges) a node has; all of its ranks if `wanted` is empty."""
    first, end = ranks.first_rank, ranks.first_rank + ranks.workers
    if not wanted:
        return [range(first, end)]
    # The last range that begins at or before the node's first rank, and all later ones.
    near = wanted[max(0, bisect(wanted, first, key=lambda piece: piece.start) - 1) :]
    overlapping = takewhile(lambda piece: piece.start < end, near)
    return [range(max(first, piece.start), min(end, piece.stop)) for piece in overlapping if piece.stop > first]
