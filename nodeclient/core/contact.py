"""What the agent knows of its contact with the coordinator: whether it stands, since when, and what was last said."""

from __future__ import annotations

import dataclasses
import math

from coordinatord.wire.messages import Desired, Observed

HEARTBEAT_S = 1.0
LEASE_S = 5.0
"""Both until the coordinator has granted others."""


class Contact:
    """The agent's side of the session, as of its own clock."""

    def __init__(self, now: float) -> None:
        self.connected = False
        self.alone_since = now
        self.trouble = "no answer yet"
        """Why the coordinator is out of reach."""
        self.heartbeat_s = HEARTBEAT_S
        self.lease_s = LEASE_S
        self.heard_at = now
        self.beat_at = math.inf
        self._heard = False
        """Whether the coordinator has said anything in this session that lets the node in."""
        self._reported: Observed | None = None

    def open(self, joined_with: Observed, now: float) -> None:
        """Begin a session whose first message said `joined_with`."""
        self.connected, self._heard = True, False
        self.heard_at = now
        self.beat_at = now + self.heartbeat_s
        self._reported = joined_with

    def close(self, reason: str, now: float) -> bool:
        """End the session, or note another vain attempt; return whether the coordinator had let the node in."""
        had_contact, self.connected = self.connected and self._heard, False
        self.trouble = reason
        if had_contact:
            self.alone_since = now
        return had_contact

    def hear(self, desired: Desired, now: float) -> None:
        """Note that the coordinator lives, and what it grants."""
        self.heard_at, self._heard = now, True
        self.heartbeat_s, self.lease_s = desired.heartbeat_s, desired.lease_s

    def is_news(self, observed: Observed, now: float) -> bool:
        """Whether this is to be said now: it has changed, or a heartbeat is due."""
        beat = self.beat_at <= now
        if beat:
            self.beat_at = now + self.heartbeat_s
        changed = self._reported is None or _ageless(observed) != _ageless(self._reported)
        self._reported = observed
        return beat or changed


def _ageless(observed: Observed) -> Observed:
    """Leave out what changes by itself."""
    failure = observed.failure and dataclasses.replace(observed.failure, age_s=0.0)
    return dataclasses.replace(observed, failure=failure, beat=False)
