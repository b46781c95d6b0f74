"""Answers of the HTTP API about how late workers come to collectives, and which one holds up the others."""

from __future__ import annotations

from msgspec import Struct

from coordinatord.protocol.http.answer_fields import AnyText, Number, Whole


class LateStatus(Struct, frozen=True, kw_only=True):
    """How late one worker of a node is: the one that arrives last in collectives most often."""

    rank: Whole
    last: Number
    """The share of the collectives in which it arrives last, 0 to 1."""
    late_s: Number
    """Its usual lateness of a step; 0 if it comes before the worker in the middle."""


class LaggardStatus(Struct, frozen=True, kw_only=True):
    """The worker that arrives last in most collectives, so that all others wait for it; or a node of such workers."""

    rank: Whole | None
    """None if the workers of the node take turns in arriving last."""
    node: AnyText
    last: Number
    """The share of the collectives in which it arrives last, 0 to 1."""
    late_s: Number
    """Its usual lateness of a step."""
    step_s: Number | None
    """How long a step takes; None if no worker reports steps. Then `late_s` is per collective."""
    sentence: AnyText
    """The same in words."""
