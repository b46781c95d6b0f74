"""What the coordinator wants done: records to make durable first (see `records`), then words to let out."""

from __future__ import annotations

from dataclasses import dataclass

from coordinatord.core.values.admin_requests import Verdict
from coordinatord.core.values.records import Record
from coordinatord.protocol.messages import Degraded, Desired, Refused


@dataclass(frozen=True, slots=True)
class Send:
    """Let this be the last thing that the session hears; what it has not yet read of before is void."""

    session: int
    message: Desired


@dataclass(frozen=True, slots=True)
class ReportDegraded:
    """Let the session hear that the coordinator lives, and nothing else."""

    session: int
    message: Degraded


@dataclass(frozen=True, slots=True)
class Refuse:
    """Say why, and close the session."""

    session: int
    message: Refused
    job: str
    node: str


@dataclass(frozen=True, slots=True)
class Close:
    """Close the session of a node that is no longer a member, or has another session; if it lives, it comes again."""

    session: int


@dataclass(frozen=True, slots=True)
class Answer:
    """Tell an operator what became of a request."""

    session: int
    verdict: Verdict
    text: str


Effect = Send | ReportDegraded | Refuse | Close | Answer


@dataclass(frozen=True, slots=True)
class Batch:
    """All that one event led to: first `records` must be durable, then `effects` may happen, in order."""

    records: tuple[Record, ...]
    effects: tuple[Effect, ...]
    hurry: bool = False
    """The effects speak of nothing that was ever recorded: they need not wait for what is being written."""
