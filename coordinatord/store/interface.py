"""What the driver asks of a store, and how a store fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from coordinatord.core.records import Record
from coordinatord.wire.exits import ExitCode


class StoreError(Exception):
    """The store cannot do what was asked: it is full, read-only, in use. State: nothing of the request is kept.

    May get better, so the same request can be made again.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.IO_ERROR
    """What a program ends with that cannot do without."""


class UnreadableStoreError(StoreError):
    """What the store holds is damaged, or was written by a newer version: waiting will not help."""

    exit_code: ClassVar[ExitCode] = ExitCode.DATA_ERROR


class NothingStoredError(StoreError):
    """There is nothing to read: no such directory, no state in it, no such job."""

    exit_code: ClassVar[ExitCode] = ExitCode.NO_INPUT


@dataclass(frozen=True, slots=True)
class Entry:
    """A record and when it was made."""

    at: float
    """In seconds since 1970 by the clock of the host, which is for people and for ages, never for deadlines."""
    record: Record


class Store(Protocol):
    """Keeps the history of all runs."""

    async def load(self) -> Sequence[Entry]:
        """Return the history of the last run of each job, oldest first. Raises `StoreError`."""

    async def append(self, records: Sequence[Record], at: float) -> None:
        """Make records that were made at the time `at` durable, in order and all or none. Raises `StoreError`.

        When this returns, a crash can no longer forget them. One append is over before the next begins.
        """

    async def close(self) -> None:
        """Let go of it; another process may use it then."""
