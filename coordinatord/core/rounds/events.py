"""The events: everything that reaches the coordinator's machine from outside. The driver gives it each with the time.

The server opens a *session* for each connection of a node, with a number that it never uses again.
"""

from __future__ import annotations

from msgspec import Struct

from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.values.admin_requests import Request
from coordinatord.hints.seen_worker import SeenWorker
from coordinatord.protocol.arrival_messages import WorkerArrivals
from coordinatord.protocol.messages import Join, Observed


class Event(Struct, frozen=True):
    """Something that reaches the machine from outside."""


class Connected(Event, frozen=True):
    """A node opened a session and sent its `Join`."""

    session: int
    join: Join
    peer_address: str
    """The address that the node was seen to come from."""
    local_address: str
    """The address of this host to which the node connected; other nodes may reach this host there as well."""
    token: str = ""
    """The name of the access token that the node presented; empty where none is required."""


class Reported(Event, frozen=True):
    """A node reported its state."""

    session: int
    observed: Observed


class Disconnected(Event, frozen=True):
    """A session ended, by whichever side."""

    session: int


class TokensRevoked(Event, frozen=True):
    """Access tokens are no longer valid. Their nodes, connected or not, may come back at once with others."""

    tokens: frozenset[str]
    """Their names."""


class AdminRequested(Event, frozen=True):
    """An operator sent a request. The effect `Answer` with the same number answers it."""

    session: int
    """The number of the request, below 0, so that no session has it."""
    request: Request


class Tick(Event, frozen=True):
    """The time that `Coordinator.next_deadline` named has come."""


class StoreFailed(Event, frozen=True):
    """Records can no longer be made durable, and those that are being written may not be durable."""

    reason: str


class StoreRecovered(Event, frozen=True):
    """All records so far are durable, and more can be written."""


class PolicyChanged(Event, frozen=True):
    """An operator has changed the settings; they apply from now on."""

    policy: Policy


class Looked(Event, frozen=True):
    """The answers to a `Look`: where each worker of a round is in its code, if its node has answered."""

    run: str
    round: int
    number: int
    workers: tuple[SeenWorker, ...]


class NodeArrivals(Struct, frozen=True):
    """When the workers of one node arrived in their last collectives."""

    node: str
    answered_at: float
    """When the node answered, by the coordinator's clock: the middle of the round trip."""
    error_s: float
    """How far `answered_at` may be wrong, to either side: half of the round trip."""
    clock_s: float
    """The node's own clock when it answered."""
    workers: tuple[WorkerArrivals, ...]


class Compared(Event, frozen=True):
    """Nodes of a round have answered when their workers arrived in their last collectives.

    The server asks at regular times. A worker that arrives after all others again and again makes all of them slow.
    """

    run: str
    round: int
    nodes: tuple[NodeArrivals, ...]
    """The answers; a node with many workers may give several."""
