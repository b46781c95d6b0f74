"""The points of a commit at which a coordinator of the simulated world is killed."""

from __future__ import annotations

from enum import StrEnum


class CrashPoint(StrEnum):
    """Where in a commit the daemon is killed."""

    BEFORE = "before its records are durable"
    AFTER = "when its records are durable and no node has received any"
    AMONG = "when some nodes have received theirs"
