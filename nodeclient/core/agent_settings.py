"""What its user lets a node's agent go by."""

from __future__ import annotations

from dataclasses import dataclass

JOIN_TIMEOUT_S = 600.0
"""How long nodes look for a coordinator and wait for a round, unless told otherwise: as torchrun has it."""

ABORT_TIMEOUT_S = 0.5
"""In an unplanned stop, between SIGTERM and SIGKILL: whoever is blocked in a collective will not get out of it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the agent goes by; durations in seconds."""

    workers: int
    join_timeout_s: float
    """How long it looks for a coordinator while it has no workers to keep."""
    stop_timeout_s: float
    """How long workers get to end in a planned stop."""
    abort_timeout_s: float = ABORT_TIMEOUT_S
    """How long in any other."""
    kills: bool = True
    """Workers that do not end in time are killed by this node; torchrun sees to its own by itself."""
