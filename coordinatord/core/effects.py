"""What the coordinator wants done: records to make durable first (see `records`), then effects to carry out."""

from __future__ import annotations

from dataclasses import dataclass

from coordinatord.core.values.admin_requests import AdminResult
from coordinatord.core.values.records import Record
from coordinatord.core.values.stack_source import StackSource
from coordinatord.protocol.frozen_class import frozen
from coordinatord.protocol.messages import Degraded, Desired, Refused


@dataclass(slots=True)
class Send:
    """Make this the last message of the session; one that has not been sent yet is void.

    It is not frozen, like `Batch`: there is one for each heartbeat, and a frozen one takes four times as long to make.
    """

    session: int
    message: Desired


@frozen
class ReportDegraded:
    """Send the session that the coordinator lives, and nothing else."""

    session: int
    message: Degraded


@frozen
class Refuse:
    """Send the reason, and close the session."""

    session: int
    message: Refused
    job: str
    node: str


@frozen
class Close:
    """Close the session of a node that is no longer a member, or has another session; if it lives, it comes again."""

    session: int


@frozen
class Answer:
    """Answer an operator's request."""

    session: int
    result: AdminResult
    text: str


@frozen
class Look:
    """Ask these nodes where their workers stand; `Looked` brings the answers. It changes nothing, so it never waits."""

    run: str
    round: int
    number: int
    """The answer repeats it."""
    sources: tuple[StackSource, ...]


Effect = Send | ReportDegraded | Refuse | Close | Answer


@dataclass(slots=True)
class Batch:
    """All that one event led to: first `records` must be durable, then `effects` may happen, in order."""

    records: tuple[Record, ...]
    effects: tuple[Effect, ...]
    hurry: bool = False
    """Nothing recorded depends on the effects: they need not wait for the records that are being written."""
    repeats: bool = False
    """The effects are the last ones of their sessions once more, perhaps with another heartbeat and lease: they wait
    only if those still do."""
    looks: tuple[Look, ...] = ()
    """What to find out at once, whatever is being written."""
