"""The supported versions of the protocol, and the fields that each of them adds.

Both sides support the current version and up to two before it, so that a cluster can be upgraded host by host while its
jobs train. The first message of a session determines its version, and its messages have the fields of that version.

To raise the version: add one to `PROTOCOL_VERSION`, and a row to `ADDED` for each new field, or new value of one. A new
field needs a default that means "not known": sessions of the older version have that. A new value, or a new message,
must not be sent in a session of the older version. Three things never change, so that two sides without a common
version can detect that: the `type` of each message, the `version` of a `Join`, and the whole of `Refused`.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from coordinatord.protocol.messages import PROTOCOL_VERSION
from coordinatord.protocol.schema import LeftOut

SUPPORTED = tuple(range(PROTOCOL_VERSION, max(PROTOCOL_VERSION - 3, 0), -1))
"""The supported versions, newest first. A node tries them in this order."""


class Added(Struct, frozen=True):
    """A field that a version added to a message, or a value that it added to an enumeration."""

    version: int
    message: type[Any]
    """The message or the enumeration."""
    field: str


ADDED: tuple[Added, ...] = ()
"""Empty: there is one version so far."""


def later_than(version: int, rows: Iterable[Added] | None = None) -> LeftOut:
    """Return the fields and values that were added after a version, by `ADDED` or other `rows`."""
    later: dict[type[Any], frozenset[str]] = {}
    for added in ADDED if rows is None else rows:
        if added.version > version:
            later[added.message] = later.get(added.message, frozenset()) | {added.field}
    return MappingProxyType(later)


def version_mismatch(theirs: object) -> str:
    """Return the error text for a node whose version is not supported."""
    ours = ", ".join(map(str, SUPPORTED))
    return f"the coordinator supports protocol {ours}, this node {theirs}: install the same release on all hosts"
