"""One node as this life of the coordinator knows it, and where it stands in its run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

from coordinatord.core.state.durable import DurableMember
from coordinatord.core.values.ranks import Seat
from coordinatord.protocol.errors import Table
from coordinatord.protocol.messages import Desired, NodeSpec, Observed, Phase


class MemberState(StrEnum):
    """What a node is doing in its run; exactly one of these at any time."""

    READY = "ready"
    """Outside the round, without workers: can be given the next one."""
    STALE = "stale"
    """Outside the round, but with workers of an older one."""
    DISCONNECTED = "disconnected"
    """Outside the round, its session closed, its lease not yet over."""
    ASSIGNED = "assigned"
    """In the round, workers not yet reported as running."""
    RUNNING = "running"
    STOPPING = "stopping"
    """In the round, ending its workers."""
    STOPPED = "stopped"
    """In the round, its workers confirmed dead without all having succeeded."""
    SUCCEEDED = "succeeded"
    SILENT = "silent"
    """In the round, its lease is over."""
    RELEASED = "released"
    """Told to exit; no longer counted."""

    @property
    def may_have_workers(self) -> bool:
        """Whether the round must wait for this node before it is over."""
        return self in {MemberState.ASSIGNED, MemberState.RUNNING, MemberState.STOPPING}


UNHEARD = Observed(run="", round=0, phase=Phase.IDLE, port=1, leaving=False, failure=None, heard_s=0.0, beat=False)
"""What is known of a node that has not said anything yet; its port is not used before it has."""


@dataclass(slots=True, eq=False)
class Member:
    """A node in a run, as this life of the daemon knows it; `durable` is what outlives it."""

    durable: DurableMember
    node: str = field(init=False)
    incarnation: int = field(init=False)
    offer: NodeSpec = field(init=False)
    """These three never change, so they are here as well."""

    peer_address: str = field(init=False)
    """The address from which it is connected now, or was last."""
    local_address: str = field(init=False)
    """The coordinator's own address of that connection."""
    heard_at: float = field(init=False)
    awaited_from: float = field(init=False)
    """From when its next word is awaited: it last spoke then, or nobody could have heard it before."""
    late_s: float = 0.0
    """How much later than due its words have come of late; see `leases`."""
    deaf_s: float = 0.0
    """How long it had not heard us when it last spoke."""
    arrived_at: float = field(init=False)
    """When it last came to be ready from outside, in the coordinator's clock."""
    arrived: bool = field(init=False)
    """It was ready before, or in a round: when it is ready again, it is back and has not come anew."""
    observed: Observed = UNHEARD
    protocol: int | None = None
    """The version of the protocol that it last spoke; not known before it has."""
    release: str = ""
    """Of its nodeclient; empty if not known."""
    session: int | None = None
    closed_at: float | None = None
    """When its session ended, while it has none."""
    expired: bool = False
    """Its lease is over."""
    spared_at: float = -math.inf
    """When it was last given more time to be heard, though it had been silent for a lease."""
    drained: str = ""
    """Why an operator wants it to leave, if so."""
    state: MemberState = MemberState.DISCONNECTED
    sent: Desired | None = None
    """The last message of its session."""
    sent_revision: int = 0
    """The revision of its run that this message was made of."""

    def __post_init__(self) -> None:
        """Begin with what its records tell."""
        durable = self.durable
        self.node, self.incarnation, self.offer = durable.node, durable.incarnation, durable.offer
        self.peer_address, self.local_address = durable.peer_address, durable.local_address
        self.heard_at = self.awaited_from = self.arrived_at = durable.joined_at
        self.arrived = durable.has_taken_part

    @property
    def seat(self) -> Seat:
        """What its rank goes by."""
        offer = self.offer
        return Seat(self.node, offer.host, offer.topology, offer.workers, offer.role, offer.group_rank)

    @property
    def leaves(self) -> bool:
        """Whether it is to leave, by its own user's wish or an operator's."""
        return self.observed.leaving or bool(self.drained)

    @property
    def silent_since(self) -> float:
        """When it was last known to live."""
        return self.heard_at if self.closed_at is None else self.closed_at

    @property
    def lived_at(self) -> float:
        """When it was last known to live, or could not have been heard: the first moment of this life of the daemon."""
        return max(self.heard_at, self.silent_since)

    @property
    def in_doubt(self) -> bool:
        """Whether it was silent for a lease, was given more time, and has not been heard since."""
        return self.lived_at < self.spared_at

    def state_in(self, run: str, round_number: int) -> MemberState:
        """Work out where the node stands, given the run and its current round."""
        durable = self.durable
        if durable.assignment is not None:
            return self._state_inside(run, round_number)
        if durable.outcome is not None:
            return MemberState.RELEASED
        if self.expired or self.session is None:
            return MemberState.DISCONNECTED
        return MemberState.STALE if self.observed.phase.has_workers else MemberState.READY

    def _state_inside(self, run: str, round_number: int) -> MemberState:
        if self.durable.succeeded:
            return MemberState.SUCCEEDED
        current = self.observed.run == run and self.observed.round == round_number
        if self.expired:
            return MemberState.SILENT
        if not current:
            return MemberState.ASSIGNED
        return _STATE_OF[self.observed.phase]


_STATE_OF = Table[Phase, MemberState]("states of a node in its round")
_STATE_OF |= {
    Phase.IDLE: MemberState.STOPPED,
    Phase.STARTING: MemberState.ASSIGNED,
    Phase.RUNNING: MemberState.RUNNING,
    Phase.STOPPING: MemberState.STOPPING,
    Phase.STOPPED: MemberState.STOPPED,
    Phase.FAILED: MemberState.STOPPED,
    Phase.SUCCEEDED: MemberState.RUNNING,  # until that is recorded
}
