"""The messages by which a coordinator asks a node when its workers arrived in their last collectives.

A worker that arrives late makes all others wait. One `Arrivals` answers each `AskArrivals`; a session, the connection
of a node, has at most one of them in flight.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta

from coordinatord.protocol.fields import STEP_MAX, Count, Counter, LocalRank, Name, RequestNumber, Seconds, Sentence
from coordinatord.protocol.schema import Strict, printable
from coordinatord.protocol.stack_messages import WORKERS_ASKED_MAX

ARRIVALS_MAX = 200
"""The most arrivals of one worker in one answer: fifty steps of a model with four buckets of gradients."""

GROUPS_MAX = 4
"""The most process groups of one worker in one answer: those of data, tensor and pipeline parallelism, and one more."""

AGE_BYTES = 4
"""The bytes of one age on the wire: a number of microseconds, so that 200 arrivals take less than a kilobyte."""

AGE_US_MAX = 2**32 - 1
"""The age limit of an arrival, in microseconds: more than an hour."""

CLOCK_MAX = 2**53
"""The limit of a clock in seconds, which no clock comes near."""


class GroupArrivals(Strict, frozen=True):
    """When a worker arrived in consecutive collectives of one process group."""

    group: Annotated[str, printable(32, least=1)]
    """The process group, such as `default_pg`, with the same name in all of its workers."""
    first: Annotated[int, Meta(ge=0, le=STEP_MAX)]
    """The number of the first of these collectives in the group."""
    ages: Annotated[bytes, Meta(max_length=AGE_BYTES * ARRIVALS_MAX)]
    """The age of each arrival at the answer, encoded by `pack_ages`."""


class WorkerArrivals(Strict, frozen=True):
    """When one worker arrived in its last collectives."""

    rank: Count
    groups: Annotated[tuple[GroupArrivals, ...], Meta(max_length=GROUPS_MAX)]


class AskArrivals(Strict, frozen=True, tag=True):
    """Asks when some workers of a round arrived in their last collectives."""

    request: RequestNumber
    run: Name
    round: Counter
    local_ranks: Annotated[tuple[LocalRank, ...], Meta(min_length=1, max_length=WORKERS_ASKED_MAX)]
    most: Annotated[int, Meta(ge=1, le=ARRIVALS_MAX)]
    """The most arrivals of each worker that are wanted."""


class Arrivals(Strict, frozen=True, tag=True):
    """When these workers arrived."""

    request: RequestNumber
    clock_s: Annotated[float, Meta(ge=0, le=CLOCK_MAX)]
    """The node's monotonic clock at this answer. Several answers give the offset between two hosts' clocks."""
    held_s: Seconds
    """How long the node took to answer, to subtract from the round-trip time."""
    workers: Annotated[tuple[WorkerArrivals, ...], Meta(max_length=WORKERS_ASKED_MAX)]
    """The workers that can be asked: they run the thread of `workerlib.responder`. A worker that has not answered, or
    whose torch has no flight recorder, has no groups."""
    problem: Sentence
    """Why there are no arrivals; empty if there are."""


def pack_ages(ages_s: Iterable[float]) -> bytes:
    """Encode ages in seconds as microseconds in 4 bytes each; ages below 0 or above `AGE_US_MAX` are clipped."""
    ages_us = [min(max(0, round(age_s * 1e6)), AGE_US_MAX) for age_s in ages_s]
    return struct.pack(f"<{len(ages_us)}I", *ages_us)


def unpack_ages(packed: bytes) -> list[float]:
    """Decode ages in seconds; an incomplete last one is dropped."""
    count = len(packed) // AGE_BYTES
    return [age_us / 1e6 for age_us in struct.unpack_from(f"<{count}I", packed)]
