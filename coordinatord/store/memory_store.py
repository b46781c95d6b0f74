"""A store in memory (`--ephemeral`): a restart of coordinatord forgets all jobs."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Collection, Sequence
from itertools import count

from coordinatord.core.rounds.values.records import NodeJoined, Record, RoundFormed
from coordinatord.core.rounds.values.round_history import ROUND_RECORDS, without_ranks
from coordinatord.store.interface import Entry, EventPage, LoggedEvent

RECORDS_MAX = 1_000
"""The limit of records. A run has about ten a round; those of 10,000 nodes take about a megabyte."""

ROUNDS_MAX = 4_000
"""The limit of records about rounds, four a round. It is separate because joins of thousands of nodes would displace
them. Each takes less than a kilobyte, or a few with a report."""


class MemoryStore:
    """The newest records of all runs."""

    def __init__(self) -> None:
        self.identity = secrets.token_hex(4)
        """A token that no other store has."""
        self._numbers = count(1)
        self._kept: deque[tuple[int, float, Record]] = deque(maxlen=RECORDS_MAX)
        self._rounds: deque[Record] = deque(maxlen=ROUNDS_MAX)

    @property
    def records(self) -> list[Record]:
        """The stored records, oldest first."""
        return [record for _, _, record in self._kept]

    async def load(self) -> Sequence[Entry]:
        """Return nothing: a new process has no history."""
        return ()

    async def append(self, entries: Sequence[Entry]) -> None:
        """Store records."""
        self._kept.extend((next(self._numbers), entry.at, entry.record) for entry in entries)
        self._rounds.extend(without_ranks(entry.record) for entry in entries if isinstance(entry.record, ROUND_RECORDS))

    async def read_events(
        self, job: str | None, after: int | None, most: int, *, kinds: Collection[str] = (), since: float = 0.0
    ) -> EventPage:
        """Return a page of events: see `Store`."""
        found = [kept for kept in self._kept if kept[0] > (after or 0) and job in {None, kept[2].job}]
        found = [kept for kept in found if kept[1] >= since and (not kinds or kept[2].KIND in kinds)]
        found = found[-most:] if after is None else found[:most]
        newest = self._kept[-1][0] if self._kept else 0
        whole = after is None or len(found) < most
        return EventPage(tuple(_logged_event(*kept) for kept in found), newest if whole else found[-1][0])

    async def read_round(self, job: str, run: str, number: int) -> Sequence[Record]:
        """Return a round's records: see `Store`."""
        joined: dict[str, Record] = {}
        for record in self.records:
            if (record.job, record.run) != (job, run):
                continue
            if isinstance(record, NodeJoined):
                joined[record.node] = record
            if isinstance(record, RoundFormed) and record.round == number:
                return [*joined.values(), record]
        return ()

    async def read_rounds(self, job: str, run: str) -> Sequence[Record]:
        """Return the records about the rounds of a run: see `Store`."""
        return [record for record in self._rounds if (record.job, record.run) == (job, run)]

    async def close(self) -> None:
        """Do nothing."""


def _logged_event(number: int, at: float, record: Record) -> LoggedEvent:
    node, of_round = getattr(record, "node", None), getattr(record, "round", None)
    return LoggedEvent(number, at, record.job, record.run, record.KIND, node, of_round, record.reason)
