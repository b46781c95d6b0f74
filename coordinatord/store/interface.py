"""The one thing that the driver asks of a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from coordinatord.core.effects import Record


class StoreError(Exception):
    """Records could not be made durable. State: they may or may not have been written."""


class Store(Protocol):
    """Keeps the history of all runs."""

    async def append(self, records: Sequence[Record]) -> None:
        """Make records durable, in order and all or none. Raises `StoreError`.

        When this returns, a crash can no longer forget them.
        """
