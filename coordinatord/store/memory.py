"""A store that lasts as long as the process: a restart of coordinatord forgets the jobs (`--ephemeral`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from coordinatord.core.records import Record
from coordinatord.store.interface import Entry

RECORDS_MAX = 1_000
"""A run leaves about ten a round; one of 10,000 nodes is about a megabyte."""


class MemoryStore:
    """The newest records of all runs."""

    def __init__(self) -> None:
        self.records: deque[Record] = deque(maxlen=RECORDS_MAX)

    async def load(self) -> Sequence[Entry]:
        """Return nothing: a process that starts has no memory."""
        return ()

    async def append(self, records: Sequence[Record], at: float) -> None:
        """Keep records."""
        del at
        self.records.extend(records)

    async def close(self) -> None:
        """Do nothing: there is nothing to let go of."""
