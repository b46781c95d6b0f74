"""The JSON objects that `state --json` and `replay --json` print. Programs depend on the names of the fields.

A field of `nodeclient status --json` with the same name has the same meaning; see `coordinatord.protocol.http.api`.
"""

from __future__ import annotations

import json

from msgspec import Struct
from msgspec.structs import asdict

from coordinatord.protocol.http.api import CoordinatorStatus, DrainedStatus, RestartsStatus


class StoredNode(Struct, frozen=True, kw_only=True):
    """A node of a run."""

    node: str
    host: str | None
    """None if the node has left."""
    group_rank: int | None
    """None outside a round."""
    ranks: tuple[int, ...]


class StoredJob(Struct, frozen=True, kw_only=True):
    """The last run of a job."""

    job: str
    run: str
    state: str
    reason: str
    round: int
    restarts: RestartsStatus
    nodes: tuple[StoredNode, ...]
    changed_at: float
    """The time of its last record, in seconds since 1970."""


class StoredState(Struct, frozen=True, kw_only=True):
    """The content of a state directory, or of a namespace in etcd."""

    state_dir: str
    """The directory, or the URL of the namespace."""
    leader: CoordinatorStatus | None
    """None for a directory, or if none leads."""
    standbys: tuple[CoordinatorStatus, ...]
    lease_s: float | None
    """The remaining seconds of the leader's lease; None without a leader."""
    version: int
    """The version of the tables."""
    bytes: int
    """The size of the database, or of the values in etcd."""
    records: int
    """The number of records."""
    jobs: tuple[StoredJob, ...]
    drained: tuple[DrainedStatus, ...]


class RunState(Struct, frozen=True, kw_only=True):
    """A run after one of its records."""

    state: str
    reason: str
    round: int
    restarts: RestartsStatus


class ReplayStep(Struct, frozen=True, kw_only=True):
    """A record, and the state to which it leads."""

    at: float
    """Seconds since 1970."""
    kind: str
    reason: str
    node: str | None
    """None if the record is about no particular node; likewise `round`."""
    round: int | None
    led_to: RunState


def as_json(output: StoredState | ReplayStep) -> str:
    """Format an object as one line of JSON."""
    return json.dumps(output, default=asdict)
