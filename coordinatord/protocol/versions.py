"""The versions of the protocol that are supported, and what each of them adds to the one before.

Both sides support the present version and up to two before it, so that a cluster can be upgraded host by host while its
jobs train. Each session has one version: that of its first message. Its messages have the fields of that version.

To raise the version: add one to `PROTOCOL_VERSION`, and a row to `ADDED` for each new field, or new value of one. A new
field needs a default that means "not known", since a session of the older version has that default. A new value, or a
new message, must not be sent in a session of the older version. Three things stay as they are in all versions, so that
two sides that share none can still find that out: the `type` of each message, the `version` of a `Join`, and the whole
of `Refused`.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from coordinatord.protocol.messages import PROTOCOL_VERSION
from coordinatord.protocol.schema import Without

SUPPORTED = tuple(range(PROTOCOL_VERSION, max(PROTOCOL_VERSION - 3, 0), -1))
"""The present version comes first. A node begins with it, and takes the next one if the coordinator does not
support this."""


class Added(Struct, frozen=True):
    """A field that came with a version, or a value of an enumeration."""

    version: int
    message: type[Any]
    field: str


ADDED: tuple[Added, ...] = ()
"""Nothing yet: there is one version."""


def later_than(version: int, rows: Iterable[Added] | None = None) -> Without:
    """Return the fields and the values of enumerations that came after a version, by the `rows` of `ADDED`."""
    later: dict[type[Any], frozenset[str]] = {}
    for added in ADDED if rows is None else rows:
        if added.version > version:
            later[added.message] = later.get(added.message, frozenset()) | {added.field}
    return MappingProxyType(later)


def differing(theirs: object) -> str:
    """Return the text that the coordinator does not support the version of a node, which is `theirs`."""
    ours = ", ".join(map(str, SUPPORTED))
    return f"the coordinator supports protocol {ours}, this node {theirs}: install the same release on all hosts"
