"""The kinds of hangs."""

from __future__ import annotations

from enum import StrEnum


class HangKind(StrEnum):
    """What is wrong with the worker that others wait for."""

    ABSENT = "absent"
    """It is behind in the sequence, and nothing shows what it does."""
    STUCK = "stuck"
    """Its stack stands still, it uses no CPU, and what it reads and writes does not move."""
    BUSY = "busy"
    """It does something else, such as an evaluation: the others wait for it."""
    MISMATCHED = "mismatched"
    """It waits in another collective than the others of its group, or in one of another size or type."""
    NETWORK = "network"
    """All of a group wait in the same collective, and it completes for none."""
