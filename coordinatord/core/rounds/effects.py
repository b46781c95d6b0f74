"""The machine's output: a `Batch` for each event, with records to write, effects to carry out, and looks to begin.

The journal holds effects back until the records are durable; looks change nothing, and so wait for none. The driver
carries out both.
"""

from __future__ import annotations

from msgspec import Struct

from coordinatord.core.rounds.values.admin_requests import AdminResult
from coordinatord.core.rounds.values.records import Record
from coordinatord.protocol.messages import Degraded, Desired, Refused


class WorkerSource(Struct, frozen=True):
    """Some workers of a node, which one question asks about."""

    node: str
    host: str
    first_rank: int
    """The rank of the node's first worker, even if that is not asked about."""
    ranks: tuple[int, ...]
    session: int | None
    """The session of the node; None if it cannot be asked."""
    problem: str
    """Why it cannot be asked; empty if it can."""

    @property
    def local_ranks(self) -> tuple[int, ...]:
        """The local ranks of these workers, by which the node knows them."""
        return tuple(rank - self.first_rank for rank in self.ranks)


class Effect(Struct, frozen=True):
    """Something to do for a session, or for an operator's request."""

    session: int
    """The number of the session; numbers below 0 are those of operators' requests."""


class Send(Effect, frozen=True):
    """Send this message in the session, in place of any earlier one that is not sent yet."""

    message: Desired


class ReportDegraded(Effect, frozen=True):
    """Send the session that the coordinator lives, but cannot record anything, and so decides nothing."""

    message: Degraded


class Refuse(Effect, frozen=True):
    """Send the reason, and close the session."""

    message: Refused
    job: str
    """The job that the node wanted to join, for the log."""
    node: str


class Close(Effect, frozen=True):
    """Close the session of a node that is no longer a member, or has a newer session. A node that lives reconnects."""


class Answer(Effect, frozen=True):
    """Answer an operator's request."""

    result: AdminResult
    text: str


class Look(Struct, frozen=True):
    """Ask nodes where their workers are in their code, since training has stalled; `Looked` has the answers."""

    run: str
    round: int
    number: int
    """The number of the look, which the answer repeats."""
    sources: tuple[WorkerSource, ...]


class Batch(Struct, frozen=True):
    """All that follows from one event: `records` to make durable first, then `effects` to carry out, in order."""

    records: tuple[Record, ...]
    effects: tuple[Effect, ...]
    at_once: bool = False
    """Whether the effects rest on no record, and so wait for none."""
    repeats: bool = False
    """Whether the only effect repeats the last message of its session, perhaps with another heartbeat and lease. It
    waits only if that message still waits."""
    looks: tuple[Look, ...] = ()
    """The looks to begin at once, whatever is being written."""
