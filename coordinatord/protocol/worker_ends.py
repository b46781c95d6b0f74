"""The ends of workers beside the failure of a round, as nodes report them and as they are shown.

`messages` defines a failure.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from coordinatord.protocol.fields import CONSEQUENCES_MAX, WORKERS_MAX, Count, Name, Seconds, WorkerExit
from coordinatord.protocol.schema import Strict


class Ended(Strict, frozen=True):
    """A worker that exited with 0 while its round was on."""

    rank: Count
    age_s: Seconds
    """How long before this message."""


class Killed(Strict, frozen=True):
    """Workers of a node that had not ended when the time that they had to save their state was over."""

    ranks: Annotated[tuple[Count, ...], Meta(min_length=1, max_length=CONSEQUENCES_MAX)]
    """The first few of them."""
    count: Annotated[int, Meta(ge=1, le=WORKERS_MAX)]
    """The number of all of them."""
    after_s: Seconds
    """How long they had."""


class SecondaryFailure(Strict, frozen=True):
    """A worker that failed after another one had: because of it, or with the same error."""

    node: Name
    rank: Count
    exit_code: WorkerExit
    same_error: bool = False
    left: bool = False
    """It left its round because a collective failed, and its process has not ended."""


class EarlyEnd(Strict, frozen=True):
    """A worker that had exited with 0 when another one failed."""

    node: Name
    rank: Count
    before_s: Seconds
    """How long before that failure."""
