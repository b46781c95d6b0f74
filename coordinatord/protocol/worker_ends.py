"""The ends of workers beside the failure of a round, as nodes report them and as they are shown.

`messages` defines a failure.
"""

from __future__ import annotations

from typing import Annotated

from coordinatord.protocol.fields import CONSEQUENCES_MAX, WORKERS_MAX, Count, Name, Seconds, WorkerExit
from coordinatord.protocol.frozen_class import frozen
from coordinatord.protocol.schema import Length, Range


@frozen
class Ended:
    """A worker that exited with 0 while its round was on."""

    rank: Count
    age_s: Seconds
    """How long before this message."""


@frozen
class Killed:
    """Workers of a node that had not ended when the time that they had to save their state was over."""

    ranks: Annotated[tuple[Count, ...], Length(1, CONSEQUENCES_MAX)]
    """The first few of them."""
    count: Annotated[int, Range(1, WORKERS_MAX)]
    """The number of all of them."""
    after_s: Seconds
    """How long they had."""


@frozen
class SecondaryFailure:
    """A worker that failed after another one had: because of it, or with the same error."""

    node: Name
    rank: Count
    exit_code: WorkerExit
    same_error: bool = False
    left: bool = False
    """It left its round because a collective failed, and its process has not ended."""


@frozen
class EarlyEnd:
    """A worker that had exited with 0 when another one failed."""

    node: Name
    rank: Count
    before_s: Seconds
    """How long before that failure."""
