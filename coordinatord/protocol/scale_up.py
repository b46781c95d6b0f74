"""What a job does when nodes arrive while it trains, and its round has room for them."""

from __future__ import annotations

from enum import StrEnum


class ScaleUp(StrEnum):
    """When a round ends so that the next one includes nodes that have arrived; a setting of the job."""

    NOW = "now"
    """It ends as soon as no more arrive."""
    AT_CHECKPOINT = "at-checkpoint"
    """It ends when the next checkpoint is there, which the script writes or which is saved at an interval. A job whose
    workers save whenever they are asked to, and at no other time, does not wait."""
    NEVER = "never"
    """It ends for other reasons alone: until then they are spares."""
