"""What the coordinator wants done: records to make durable first, then words to let out.

Records are few: heartbeats and observations leave none. Each says its `reason` in words, which is also its log line.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinatord.wire.messages import Desired, Outcome, Refused


@dataclass(frozen=True, slots=True)
class Record:
    """One fact in the history of a run."""

    job: str
    run: str
    reason: str


@dataclass(frozen=True, slots=True)
class RunOpened(Record):
    """The first node of a run came."""

    nodes_min: int
    nodes_max: int
    max_restarts: int


@dataclass(frozen=True, slots=True)
class NodeJoined(Record):
    """A node became a member of a run."""

    node: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class NodeGone(Record):
    """A member left, was lost, was replaced or was let go; `reason` says which."""

    node: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class RoundFormed(Record):
    """A round got its nodes, in the order of their group ranks; it is never edited."""

    round: int
    nodes: tuple[str, ...]
    workers: tuple[int, ...]
    """How many each of them brings, in the same order."""
    master_address: str
    master_port: int


@dataclass(frozen=True, slots=True)
class RoundEnded(Record):
    """All workers of a round are gone, and it has been judged why."""

    round: int
    charged: bool
    restarts_used: int


@dataclass(frozen=True, slots=True)
class StateChanged(Record):
    """A run went from one state to another that no other record tells of."""

    round: int
    state: str


@dataclass(frozen=True, slots=True)
class RunEnded(Record):
    """A run is over."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Send:
    """Let this be the last thing that the session hears; what it has not yet read of before is void."""

    session: int
    message: Desired


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


Effect = Send | Refuse | Close


@dataclass(frozen=True, slots=True)
class Batch:
    """All that one event led to: first `records` must be durable, then `effects` may happen, in order."""

    records: tuple[Record, ...]
    effects: tuple[Effect, ...]
