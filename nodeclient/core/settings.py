"""What its user lets a node's agent go by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """What the agent goes by; durations in seconds."""

    workers: int
    join_timeout_s: float
    """How long it looks for a coordinator while it has no workers to keep."""
    stop_timeout_s: float
    """How long workers get to end in a planned stop."""
