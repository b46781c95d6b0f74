"""Which node to ask where some of its workers stand."""

from __future__ import annotations

from coordinatord.protocol.frozen_class import frozen
from coordinatord.protocol.stack_messages import AskStacks


@frozen
class StackSource:
    """Some workers of a node, which are asked together."""

    node: str
    host: str
    first_rank: int
    """The rank of the node's first worker."""
    session: int | None
    """The session of the node; None if it cannot be asked."""
    wanted: AskStacks
    problem: str
    """Why it cannot be asked; empty if it can."""
