"""The events of `GET /v1/stream`, as records: the live page's data.

Only the page reads them, and it is of the same release. The fields have the meanings of `api`.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from coordinatord.protocol.http.api import (
    AnyText,
    DrainedStatus,
    HostStatus,
    Items,
    JobStatus,
    Number,
    ProgressStatus,
    RestartsStatus,
    SharedStatus,
    Whole,
)
from coordinatord.protocol.schema import LeftOut


class JobSummary(Struct, frozen=True, kw_only=True):
    """A job in the list of the live page; the fields are those of `JobStatus`, except `nodes` and `goodput`."""

    job: AnyText
    run: AnyText
    state: AnyText
    health: AnyText
    reason: AnyText
    round: Whole
    world_size: Whole
    restarts: RestartsStatus
    spares: Whole
    progress: ProgressStatus
    nodes: Whole
    """The number of nodes."""
    goodput: Number | None


class PageViewer(Struct, frozen=True, kw_only=True):
    """The event `viewer`, the first one of `GET /v1/stream`: the viewer's rights."""

    token: AnyText
    """The name of the token whose rights the page has; empty if no token is needed."""
    may_act: bool
    """Whether the page may send operators' requests."""


class PageStatus(Struct, frozen=True, kw_only=True):
    """The event `jobs` of `GET /v1/stream`."""

    version: AnyText
    """The release of the coordinator."""
    jobs: Items[JobSummary]
    drained: Items[DrainedStatus]
    charged: Items[HostStatus]
    insecure: bool = False
    """Whether the coordinator serves everybody, in the clear."""
    shared: SharedStatus | None = None
    """The leader and the standbys; None without a shared store."""


class NodeTable(Struct, frozen=True, kw_only=True):
    """The nodes of a job as a table, which has the names of the fields of `NodeStatus` only once."""

    columns: tuple[AnyText, ...]
    rows: tuple[tuple[Any, ...], ...]


class SeriesStatus(Struct, frozen=True, kw_only=True):
    """A run over time, for charts: an item for each point, oldest first."""

    span_s: Number
    """The length of a point, in seconds of the run; the last one may be shorter."""
    upto_s: Number
    """The age of the run at the end of the last point."""
    steps_per_s: Items[Number | None]
    """The mean of each point; None if not known."""
    training_s: Items[Number]
    """The seconds of training up to the end of each point."""
    restarts: Items[Whole]
    """The used restarts up to the end of each point."""


class PageJob(Struct, frozen=True, kw_only=True):
    """The event `job` of `GET /v1/stream`."""

    job: AnyText
    status: JobStatus | None
    """None if there is no such job. Its nodes are in `nodes`."""
    nodes: NodeTable
    series: SeriesStatus | None = None
    revision: Whole = 0
    """A change means that there may be new events."""


ON_PAGE: LeftOut = {JobStatus: frozenset({"nodes"})}
"""The fields that the page gets in another form."""
