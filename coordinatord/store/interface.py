"""The interface through which the coordinator makes records durable, and its errors."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from msgspec import Struct

from coordinatord.core.rounds.values.records import Record
from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.exit_codes import ExitCode


class StoreError(OperationalError):
    """The store cannot execute a request: it is full, read-only or in use. State: unchanged, so it may be retried."""

    exit_code = ExitCode.IO_ERROR


class UnreadableStoreError(StoreError):
    """The store's content is damaged, or was written by a newer version: waiting will not help."""

    exit_code = ExitCode.DATA_ERROR


class NothingStoredError(StoreError):
    """There is nothing to read: no such directory, no state in it, or no such job."""

    exit_code = ExitCode.NO_INPUT


class LeadershipLostError(OperationalError):
    """This coordinator no longer leads. State: its later decisions are dropped, and it sends no more messages."""

    exit_code = ExitCode.TEMPFAIL


LEASE_OVER = "the lease is over, so another coordinator may lead: this one decides nothing more"
"""The text of `LeadershipLostError` once the lease of the leader is over."""


class Entry(Struct, frozen=True):
    """A record and its time."""

    at: float
    """When the record was made, in seconds since 1970 by the host's clock; for people and ages, never for deadlines."""
    record: Record


class LoggedEvent(Struct, frozen=True):
    """A record as people read it: what happened, when, where and why."""

    number: int
    """Its sequence number in the store, never reused."""
    at: float
    """When it happened, in seconds since 1970 by the host's clock."""
    job: str
    """Empty for an event of no job."""
    run: str
    kind: str
    node: str | None
    round: int | None
    reason: str


class EventPage(Struct, frozen=True):
    """A page of events, oldest first."""

    events: tuple[LoggedEvent, ...]
    upto: int
    """The page has all requested events up to the record of this number."""


class Store(Protocol):
    """Stores the records of all runs."""

    @property
    def identity(self) -> str:
        """A token that no other store has: each store numbers its records itself."""

    async def load(self) -> Sequence[Entry]:
        """Return the records that lead to the present state, oldest first. Raises `StoreError`.

        These are all records of a live run, the records that determine the outcome of an ended run, and the records
        that begin and end each earlier run of a job.
        """

    async def append(self, entries: Sequence[Entry]) -> None:
        """Make records durable, all or none of them. Raises `StoreError`, and `LeadershipLostError`.

        They survive a crash after the return. The caller awaits each append before the next.
        """

    async def read_events(
        self, job: str | None, after: int | None, most: int, *, kinds: Collection[str] = (), since: float = 0.0
    ) -> EventPage:
        """Return the next `most` records with a greater number than `after`; None: the newest. Raises `StoreError`.

        Without `job`, records of all jobs and of no job match; without `kinds`, all kinds. Only records made at `since`
        or later match. The call delays no commit.
        """

    async def read_round(self, job: str, run: str, number: int) -> Sequence[Record]:
        """Return a round's records: the last `NodeJoined` of each node before it, then its `RoundFormed`.

        Return nothing if there is no such round, or it was deleted. The call delays no commit. Raises `StoreError`.
        """

    async def read_rounds(self, job: str, run: str) -> Sequence[Record]:
        """Return the records about the rounds of a run, oldest first. Raises `StoreError`.

        A `RoundRemembered` replaces each `RoundFormed`. The call delays no commit.
        """

    async def close(self) -> None:
        """Close the store; another process may use it then."""
