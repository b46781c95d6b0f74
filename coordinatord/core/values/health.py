"""The health of a round."""

from __future__ import annotations

from enum import StrEnum


class Health(StrEnum):
    """What can be seen of a round that goes on, beside its state."""

    WELL = "well"
    STALLED = "stalled"
    """No worker has done a step for much longer than is usual."""
    SILENT = "silent"
    """No node of it can be heard."""
