"""A section of a training script: a phase that the script has named, with the longest time that it may take."""

from __future__ import annotations

from typing import Annotated

from coordinatord.protocol.fields import LocalRank, Seconds
from coordinatord.protocol.schema import Strict, printable

SECTION_NAME_MAX = 16
"""The length of a name: two words of a worker's slot."""


class Section(Strict, frozen=True):
    """The section that ends last by its limit, of those that a node's workers are in."""

    name: Annotated[str, printable(SECTION_NAME_MAX, least=1)]
    limit_s: Seconds
    """The longest time that it may take, as the script has set it."""
    age_s: Seconds
    """How long before this message it was begun."""
    local_rank: LocalRank
    """The worker that is in it."""
