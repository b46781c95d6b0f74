"""Finds out whether a worker failed because others had exited with 0 before, and names those. Pure.

That happens if these workers have less data: they end early, and the next collective of the others fails or times out.
"""

from __future__ import annotations

from collections.abc import Sequence

from coordinatord.hints.match import needed_others
from coordinatord.protocol.fields import CONSEQUENCES_MAX
from coordinatord.protocol.messages import EarlyEnd, Failure

NAMED_MAX = 3
"""The most workers that a sentence names."""


def left_early(node: str, failure: Failure, early: Sequence[EarlyEnd]) -> str:
    """Say which workers had exited with 0 when a worker of `node` failed for lack of them; empty if it did not.

    At the normal end of a job workers exit in any order, and none of them fails for lack of another.
    """
    if not early or not needed_others(failure):
        return ""
    them = "it" if len(early) == 1 else "them"
    named = first_of([f"rank {end.rank} on node {end.node}" for end in early])
    return f"{named} exited with 0 while rank {failure.rank} on node {node} still needed {them}"


def first_of(texts: Sequence[str]) -> str:
    """Join the first few texts, and count the others."""
    more = len(texts) - NAMED_MAX
    if more <= 0:
        return ", ".join(texts)
    least = "at least " if len(texts) == CONSEQUENCES_MAX else ""  # a report names no more
    return ", ".join([*texts[:NAMED_MAX], f"{least}{more} more"])
