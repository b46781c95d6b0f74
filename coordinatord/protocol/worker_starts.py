"""How the workers of a round were begun, as nodes report it."""

from __future__ import annotations

from coordinatord.protocol.fields import Count, Sentence
from coordinatord.protocol.frozen_class import frozen


@frozen
class WorkerStarts:
    """The workers of a node in its round, by the way in which each was begun."""

    in_place: Count
    """They were in the round before, as the same processes."""
    warm: Count
    """They were forked from the parent interpreter."""
    cold: Count
    why_not: Sentence = ""
    """Why workers that could have stayed did not; empty if they did, never could have, or were killed."""
