"""The interface of a store, and its errors."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from msgspec import Struct

from coordinatord.core.rounds.values.records import Record
from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.exit_codes import ExitCode


class StoreError(OperationalError):
    """The store cannot carry out a request: it is full, read-only, in use. State: nothing of the request is kept.

    The cause may pass, so the same request can be made again.
    """

    exit_code = ExitCode.IO_ERROR


class UnreadableStoreError(StoreError):
    """The store's content is damaged, or was written by a newer version: waiting will not help."""

    exit_code = ExitCode.DATA_ERROR


class NothingStoredError(StoreError):
    """There is nothing to read: no such directory, no state in it, no such job."""

    exit_code = ExitCode.NO_INPUT


class LeadershipLostError(OperationalError):
    """This coordinator leads no more. State: nothing that it has decided since is kept, and it sends nothing more."""

    exit_code = ExitCode.TEMPFAIL


OVER = "the lease is over, so another coordinator may lead: this one decides nothing more"


class Entry(Struct, frozen=True):
    """A record and when it was made."""

    at: float
    """The time in seconds since 1970 by the clock of the host. It is for people and for ages, never for deadlines."""
    record: Record


class LoggedEvent(Struct, frozen=True):
    """A record as people read it: what happened, when, where and why."""

    number: int
    """Grows with each record of the store, and is never reused."""
    at: float
    """The time in seconds since 1970 by the clock of the host."""
    job: str
    """Empty for an event of no job."""
    run: str
    kind: str
    node: str | None
    round: int | None
    reason: str


class EventPage(Struct, frozen=True):
    """Some of what happened, oldest first."""

    events: tuple[LoggedEvent, ...]
    upto: int
    """The number of the last record that was looked at: no requested event up to here is left out."""


class Store(Protocol):
    """Keeps the history of all runs."""

    @property
    def identity(self) -> str:
        """A token that no other store has, since the numbers of records are its own."""

    async def load(self) -> Sequence[Entry]:
        """Return what led to the present state, oldest first. Raises `StoreError`.

        That is the history of the last run of each job. Of a run that has ended, it is only the records that decide
        what it came to, and of earlier runs only the beginning and the end.
        """

    async def append(self, entries: Sequence[Entry]) -> None:
        """Make records durable, in order and all or none. Raises `StoreError`, and `LeadershipLostError`.

        When this returns, they outlive a crash. The caller awaits each append before the next.
        """

    async def read_events(
        self, job: str | None, after: int | None, most: int, *, kinds: Collection[str] = (), since: float = 0.0
    ) -> EventPage:
        """Return the next `most` records with a greater number than `after`; None: the newest. Raises `StoreError`.

        Without `job` they are those of all jobs and of none, and without `kinds` those of all kinds. They were made at
        the time `since` or later. The call delays nothing that is being made durable.
        """

    async def read_round(self, job: str, run: str, number: int) -> Sequence[Record]:
        """Return who was in a round: its `RoundFormed`, after the last `NodeJoined` of each node before it.

        Return nothing if there is no such round, or it is no longer kept. The call delays nothing that is being made
        durable. Raises `StoreError`.
        """

    async def read_rounds(self, job: str, run: str) -> Sequence[Record]:
        """Return the records about the rounds of a run, oldest first. Raises `StoreError`.

        A `RoundRemembered` stands for each `RoundFormed`. The call delays nothing that is being made durable.
        """

    async def close(self) -> None:
        """Close the store; another process may use it then."""
