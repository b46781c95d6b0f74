"""The words by which the kernel knows its two wings, for one run each.

The kernel decides whether a round is formed, stopped and ended. A wing only answers, and asks to be called at a time.
"""

from __future__ import annotations

from typing import Protocol


class KeepingWing(Protocol):
    """The wing for training state that outlives workers."""


class WatchingWing(Protocol):
    """The wing that looks at workers."""


class NoKeeping:
    """Keeps nothing: each round begins from nothing that is kept."""

    def __init__(self, run: object) -> None:
        """Need nothing of the run."""


class NoWatching:
    """Looks at no worker."""

    def __init__(self, run: object) -> None:
        """Need nothing of the run."""
