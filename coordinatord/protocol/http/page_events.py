"""The events of `GET /v1/stream`, as records: the live page's data.

Only the page reads them, and it comes from the same release. The fields mean what they do in `api`.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from coordinatord.protocol.http.api import (
    ITEMS_MAX,
    AnyText,
    DrainedStatus,
    JobStatus,
    Number,
    ProgressStatus,
    RestartsStatus,
    SharedStatus,
    Whole,
)
from coordinatord.protocol.schema import Without


class JobSummary(Struct, frozen=True, kw_only=True):
    """A job in the list of the live page; the fields mean what they do in `JobStatus`."""

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
    """The event `viewer` of `GET /v1/stream`, the first one: who looks at the page."""

    token: AnyText
    """The name of the token whose rights the page has; empty if everybody is let in."""
    may_act: bool
    """Whether the page may carry out operators' requests."""


class PageStatus(Struct, frozen=True, kw_only=True):
    """The event `jobs` of `GET /v1/stream`."""

    version: AnyText
    """The release of the coordinator."""
    jobs: Annotated[tuple[JobSummary, ...], Meta(max_length=ITEMS_MAX)]
    drained: Annotated[tuple[DrainedStatus, ...], Meta(max_length=ITEMS_MAX)]
    insecure: bool = False
    """Whether everybody who reaches the coordinator is let in, in the clear."""
    shared: SharedStatus | None = None
    """Who leads and who stands by; None for a coordinator with a store of its own."""


class NodeTable(Struct, frozen=True, kw_only=True):
    """The nodes of a job: the names of the fields of `NodeStatus` once, and not with each of a thousand nodes."""

    columns: tuple[AnyText, ...]
    rows: tuple[tuple[Any, ...], ...]


class SeriesStatus(Struct, frozen=True, kw_only=True):
    """A run over time, for charts: an item for each point, oldest first."""

    span_s: Number
    """How long a point is, in seconds of the run; the last one may be shorter."""
    upto_s: Number
    """The age of the run at the end of the last point."""
    steps_per_s: Annotated[tuple[Number | None, ...], Meta(max_length=ITEMS_MAX)]
    """The mean of each point; None where it is not known."""
    training_s: Annotated[tuple[Number, ...], Meta(max_length=ITEMS_MAX)]
    """How many seconds had gone into training by the end of each point."""
    restarts: Annotated[tuple[Whole, ...], Meta(max_length=ITEMS_MAX)]
    """How many restarts had been used by then."""


class PageJob(Struct, frozen=True, kw_only=True):
    """The event `job` of `GET /v1/stream`."""

    job: AnyText
    status: JobStatus | None
    """None if there is no such job. The nodes are in the table."""
    nodes: NodeTable
    series: SeriesStatus | None = None
    revision: Whole = 0
    """When it changes, there may be new events."""


ON_PAGE: Without = {JobStatus: frozenset({"nodes"})}
"""The fields that the page gets in another form."""
