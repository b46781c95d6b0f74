"""The types that stores take and return besides records, and their errors."""

from __future__ import annotations

from msgspec import Struct

from coordinatord.core.rounds.values.records import Record
from coordinatord.protocol.errors import OperationalError
from coordinatord.protocol.exit_codes import ExitCode


class StoreError(OperationalError):
    """The store cannot execute a request, as it is full, read-only or in use. By default, nothing has changed."""

    exit_code = ExitCode.IO_ERROR


class UnreadableStoreError(StoreError):
    """The store's content is damaged, or was written by a newer version: waiting will not help."""

    exit_code = ExitCode.DATA_ERROR


class NothingStoredError(StoreError):
    """There is nothing to read: no such directory, no state in it, or no such job."""

    exit_code = ExitCode.NO_INPUT


class LeadershipLostError(OperationalError):
    """This coordinator no longer leads: its later decisions are dropped, and it sends no more messages."""

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
