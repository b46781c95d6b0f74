"""What can happen to the coordinator: everything that reaches the machine from outside."""

from __future__ import annotations

from dataclasses import dataclass

from coordinatord.core.policy import Policy
from coordinatord.core.values.admin_requests import Request
from coordinatord.core.values.hang_verdict import SeenWorker
from coordinatord.core.values.lateness import NodeArrivals
from coordinatord.protocol.frozen_class import frozen
from coordinatord.protocol.messages import Join, Observed


@frozen
class Connected:
    """A node opened a session and sent its `Join`."""

    session: int
    """The shell numbers it, and never reuses a number."""
    join: Join
    peer_address: str
    """The address that the node was seen to come from."""
    local_address: str
    """The address of this host at which it arrived, which proves that one to be reachable."""
    token: str = ""
    """The name of the access token that it has shown; empty where none is wanted."""


@dataclass(slots=True)
class Reported:
    """A node reported its state. It is not frozen, as a heartbeat has to be cheap."""

    session: int
    observed: Observed


@frozen
class Disconnected:
    """A session ended, by whichever side."""

    session: int
    revoked: bool = False
    """Whether its access token is valid no more, so that the node may come back with another one at once."""


@frozen
class AdminRequested:
    """An operator sent a request; answered by `Answer`, with the same number."""

    session: int
    """The number of the request; the shell takes it from the same range as sessions, below 0."""
    request: Request


@frozen
class Tick:
    """The time that `next_deadline` named has come."""


@frozen
class StoreFailed:
    """Decisions can no longer be made durable; those so far may not be, either."""

    reason: str


@frozen
class StoreRecovered:
    """All decisions are durable, and more can be."""


@frozen
class PolicyChanged:
    """An operator has changed the settings; they apply from now on."""

    policy: Policy


@frozen
class Looked:
    """A `Look` has come back: where each worker of the round stands, or that its node has not said."""

    run: str
    round: int
    number: int
    workers: tuple[SeenWorker, ...]


@frozen
class Compared:
    """The nodes of a round have said when their workers arrived in their last collectives."""

    run: str
    round: int
    nodes: tuple[NodeArrivals, ...]
    """Those that have answered; a node of many workers may come several times."""


Event = (
    Connected
    | Reported
    | Disconnected
    | AdminRequested
    | Tick
    | StoreFailed
    | StoreRecovered
    | PolicyChanged
    | Looked
    | Compared
)
