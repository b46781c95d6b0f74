"""Answers of the HTTP API about how the workers of a round were begun."""

from __future__ import annotations

from msgspec import Struct

from coordinatord.protocol.http.answer_fields import AnyText, Whole


class WorkerStartsStatus(Struct, frozen=True, kw_only=True):
    """The workers of a node or round, by the way in which each was begun."""

    in_place: Whole
    """They were in the round before, as the same processes."""
    warm: Whole
    """They were forked from the parent interpreter of `--preload`."""
    cold: Whole
    why_not: AnyText
    """Why workers that could have stayed were not begun in place; empty if they were, never could have been, or were
    killed. For a round, it begins with the first node of which that is true."""
    why_cold: AnyText = ""
    """Why workers were not forked from the parent interpreter, in the same way; empty if they were, or there is no
    `--preload`."""
