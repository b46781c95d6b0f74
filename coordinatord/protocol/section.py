"""A section of a training script: a phase that the script has named, which may take as long as it says."""

from __future__ import annotations

from typing import Annotated

from coordinatord.protocol.fields import WORKERS_MAX, Seconds
from coordinatord.protocol.frozen_class import frozen
from coordinatord.protocol.schema import Length, Range

SECTION_NAME_MAX = 16
"""The length of a name: two words of a worker's slot."""


@frozen
class Section:
    """The section of a node's workers that ends the last, by its limit."""

    name: Annotated[str, Length(1, SECTION_NAME_MAX)]
    limit_s: Seconds
    """How long the script says that it takes at most."""
    age_s: Seconds
    """How long before this message it was begun."""
    local_rank: Annotated[int, Range(0, WORKERS_MAX)]
    """The worker that is in it."""
