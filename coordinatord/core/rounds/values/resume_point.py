"""The choice of the step that a round resumes from, as it is recorded."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from coordinatord.protocol.fields import Count, Name, Step
from coordinatord.protocol.kept_state import AtShardedStep, DiskStep

HOLDERS_NAMED = 8
"""The most holders of a step that are named; the others are counted."""


class ResumePoint(AtShardedStep, frozen=True):
    """The step that a round resumes from."""

    redone: Step | None
    """How many steps are done again; None if that is not known, as where workers report no steps."""
    nodes: Annotated[tuple[Name, ...], Meta(max_length=HOLDERS_NAMED)] = ()
    """The first few nodes whose memory holds its big state; none in a record of an older release."""
    others: Count = 0
    """How many more nodes hold it."""
    disk: DiskStep | None = None
    """The names of the step on the disk; None if it is in memory."""
