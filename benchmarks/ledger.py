"""Reads what a coordinatord under test has made durable from its database, at no cost to it."""

from __future__ import annotations

import asyncio
import sqlite3
import struct
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from coordinatord.core.rounds.values.records import NodeLost, RoundStarted

CHANGES_AT = 8
"""The offset of the counter of transactions, of 4 bytes, in the index beside SQLite's log: `iChange` in its WAL-mode
file format."""

LOOK_AGAIN_S = 0.01
"""The longest delay with which a commit is seen, since nothing notifies us of one."""


@dataclass(frozen=True, slots=True)
class Entries:
    """How much has been made durable so far, or in a step."""

    commits: int
    records: int

    def __sub__(self, before: Entries) -> Entries:
        return Entries(self.commits - before.commits, self.records - before.records)


class Ledger:
    """The database of a coordinatord that runs: its own, or its replica of what is in etcd."""

    def __init__(self, database: Path) -> None:
        self._database = database

    def entries(self) -> Entries:
        """Return the counts so far."""
        index = self._database.with_name(f"{self._database.name}-shm").read_bytes()
        (commits,) = struct.unpack_from("=I", index, CHANGES_AT)
        return Entries(commits, self._select("SELECT count(*) FROM records"))

    async def started(self, job: str, number: int) -> None:
        """Wait until it is durable that all workers of a round are started: then nothing more is under way."""
        where = f"kind = '{RoundStarted.__name__}' AND job = '{job}' AND round = {number}"
        while not self._select(f"SELECT count(*) FROM records WHERE {where}"):  # noqa: ASYNC110, S608 - see above; our own words
            await asyncio.sleep(LOOK_AGAIN_S)

    def lost(self) -> int:
        """Return how often a node was lost."""
        return self._select(f"SELECT count(*) FROM records WHERE kind = '{NodeLost.__name__}'")  # noqa: S608 - our own words

    def _select(self, query: str) -> int:
        with closing(sqlite3.connect(f"file:{self._database}?mode=ro", uri=True)) as connection:
            (count,) = connection.execute(query).fetchone()
        return int(count)
