"""Why a run changes its state."""

from __future__ import annotations

from coordinatord.protocol.frozen_class import frozen


@frozen
class Reason:
    """The condition that held, and its text in this case."""

    condition: str
    """One of `conditions.NAMES`, or an operator's request if no row of the table was taken."""
    sentence: str
    """The row's sentence, with the names and numbers of this case."""
