"""The versions of the protocol that are supported, and what each of them adds to the one before.

Both sides support the present version and the two before it, so that a cluster can be upgraded host by host while its
jobs train. Each session has one version: that of its first message. Its messages have the fields of that version, no
more and no less.

To raise the version: add one to `PROTOCOL_VERSION`, a row to `ADDED` for each new field or to `SINCE` for each new
message, and a recording of the version that was (`tests/coordinatord/protocol`). A new field needs a default that means
"not known", since a session of the older version has that default. A new value of a field has a row too, and
must not be sent in a session of the older version: see `has_phase`. Three things stay as they are in all versions, so
that two sides that share none can still find that out: the `type` of each message, the `version` of a `Join`, and the
whole of `Refused`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from coordinatord.protocol.arrival_messages import Arrivals, AskArrivals
from coordinatord.protocol.frozen_class import frozen
from coordinatord.protocol.log_messages import LogChunk, ReadLog
from coordinatord.protocol.messages import (
    PROTOCOL_VERSION,
    Desired,
    Failure,
    Follower,
    JobSpec,
    Join,
    Observed,
    Phase,
    RefusalCode,
    Report,
)
from coordinatord.protocol.node_offer import NodeOffer
from coordinatord.protocol.stack_messages import AskStacks, Stacks
from coordinatord.protocol.worker_ends import SecondaryFailure

SUPPORTED = (PROTOCOL_VERSION, PROTOCOL_VERSION - 1, PROTOCOL_VERSION - 2)
"""The present version comes first. A node begins with it, and takes the next one if the coordinator does not
support this."""

SINCE: Mapping[type[Any], int] = MappingProxyType(
    {ReadLog: 5, LogChunk: 5, AskStacks: 6, Stacks: 6, AskArrivals: 6, Arrivals: 6}
)
"""The version with which a message came, where that is not the first that is supported."""

Later = Mapping[type[Any], frozenset[str]]
"""The fields and the values of enumerations that a version lacks, by class."""


@frozen
class Added:
    """A field that came with a version, or a value of an enumeration."""

    version: int
    message: type[Any]
    field: str


ADDED = (
    Added(5, Join, "release"),
    Added(5, Join, "age_s"),
    Added(5, Join, "command"),
    Added(5, NodeOffer, "log_dir"),
    Added(5, Desired, "remark"),
    Added(5, Observed, "ended"),
    Added(5, Observed, "killed"),
    Added(5, Phase, Phase.PREPARING),
    Added(5, Follower, "same_error"),
    Added(5, Failure, "log"),
    Added(5, SecondaryFailure, "same_error"),
    Added(5, Report, "same_error_count"),
    Added(5, Report, "early"),
    Added(5, Report, "step"),
    Added(5, Report, "stragglers"),
    Added(6, Desired, "alike"),
    Added(6, RefusalCode, RefusalCode.FORBIDDEN),  # only nodes with a token get it, and those use version 6
    Added(6, JobSpec, "scale_up"),
    Added(6, JobSpec, "hang_timeout_s"),
    Added(6, JobSpec, "drain_laggards"),
    Added(6, Failure, "hang"),
    Added(6, Failure, "hang_ranks"),
    Added(6, Observed, "section"),
    Added(6, Observed, "begun"),
    Added(6, Observed, "pids"),
    Added(6, Observed, "held_up"),
    Added(6, Join, "keeper"),
    Added(6, Join, "awaits_own"),
    Added(6, Observed, "kept"),
    Added(6, Desired, "resume"),
    Added(6, Desired, "protected"),
    Added(6, Desired, "halt"),
    Added(6, Desired, "persist"),
    Added(6, Desired, "copies"),
)


def later_than(version: int) -> Later:
    """Return the fields and the values of enumerations that came after a version."""
    later: dict[type[Any], frozenset[str]] = {}
    for added in ADDED:
        if added.version > version:
            later[added.message] = later.get(added.message, frozenset()) | {added.field}
    return MappingProxyType(later)


def has_message(version: int, message: type[Any]) -> bool:
    """Whether a version has a message."""
    return SINCE.get(message, version) <= version


def has_phase(version: int, phase: Phase) -> bool:
    """Whether a node in this phase can be described in a version."""
    return phase not in later_than(version).get(Phase, frozenset())


def differing(theirs: object) -> str:
    """Return the text that the coordinator does not support the version of a node, which is `theirs`."""
    *others, oldest = (str(version) for version in SUPPORTED)
    ours = f"{', '.join(others)} and {oldest}"
    return (
        f"the coordinator supports protocol versions {ours}, this node {theirs}: install the same release on all hosts"
    )
