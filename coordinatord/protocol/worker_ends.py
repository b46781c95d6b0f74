"""A node's report of the ends of its workers beside a failure; `messages` defines a failure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from coordinatord.protocol.fields import CONSEQUENCES_MAX, WORKERS_MAX, Count, Seconds
from coordinatord.protocol.schema import Length, Range


@dataclass(frozen=True, slots=True)
class Ended:
    """A worker that exited with 0 while its round was on."""

    rank: Count
    age_s: Seconds
    """How long before this message."""


@dataclass(frozen=True, slots=True)
class Killed:
    """Workers of a node that had not ended when the time that they had to save their state was over."""

    ranks: Annotated[tuple[Count, ...], Length(1, CONSEQUENCES_MAX)]
    """The first few of them."""
    count: Annotated[int, Range(1, WORKERS_MAX)]
    """The number of all of them."""
    after_s: Seconds
    """How long they had."""
