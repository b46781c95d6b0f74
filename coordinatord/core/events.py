"""What can happen to the coordinator: everything that reaches the machine from outside."""

from __future__ import annotations

from dataclasses import dataclass

from coordinatord.core.policy import Policy
from coordinatord.core.values.admin_requests import Request
from coordinatord.protocol.messages import Join, Observed


@dataclass(frozen=True, slots=True)
class Connected:
    """A node opened a session and said who it is."""

    session: int
    """Numbered by the shell, never reused."""
    join: Join
    peer_address: str
    """Where the node was seen to come from."""
    local_address: str
    """At which of this host's addresses it arrived, which proves that one to be reachable."""


@dataclass(frozen=True, slots=True)
class Reported:
    """A node said what is."""

    session: int
    observed: Observed


@dataclass(frozen=True, slots=True)
class Disconnected:
    """A session ended, by whichever side."""

    session: int


@dataclass(frozen=True, slots=True)
class AdminRequested:
    """An operator wants something; answered by `Answer`, with the same number."""

    session: int
    """Numbered like a node's."""
    request: Request


@dataclass(frozen=True, slots=True)
class Tick:
    """The time that `next_deadline` named has come."""


@dataclass(frozen=True, slots=True)
class StoreFailed:
    """What is decided can no longer be made durable: what was decided so far is not, as yet."""

    reason: str


@dataclass(frozen=True, slots=True)
class StoreRecovered:
    """All that was decided is durable, and more can be."""


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    """An operator has changed the settings; what is decided from now on is decided by these."""

    policy: Policy


Event = Connected | Reported | Disconnected | AdminRequested | Tick | StoreFailed | StoreRecovered | PolicyChanged
