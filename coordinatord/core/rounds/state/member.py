"""One node in a run, as this life of the coordinator knows it: its session, its lease, its last report, its state.

The state is never set. `Member.state_in` works it out from the records and the last report, and `Roll.place` stores it
in `Member.state` after each change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.state.durable import DurableMember
from coordinatord.core.rounds.values.due_times import LONG_AGO
from coordinatord.core.rounds.values.ranks import Seat
from coordinatord.protocol.errors import CompleteMap
from coordinatord.protocol.fields import DURATION_S_MAX
from coordinatord.protocol.kept_state import Holding, Keeper, PersistOffer
from coordinatord.protocol.messages import Desired, Join, NodeOffer, Observed, Phase

LATENESS_FORGIVEN = 5.0
"""The seconds that a lease grows by for each second that a heartbeat was late. TCP retries at equal pauses in sessions:
where one message has needed two retries, the next one may need ten."""

LATENESS_IGNORED = 0.5
"""A lateness below so many heartbeats is ignored: a busy host or a single lost packet causes less."""

ADDS_UP_BY = 0.25
"""The part of each further lateness that is added: if one heartbeat in three is late by a second, the lease
grows to its longest."""

FADES_TO = 0.97
"""The part of a lateness that is left after each heartbeat: half of it after 23 that are on time."""


@dataclass(slots=True, eq=False)
class Lease:
    """How long a node may be silent before it counts as lost. Times are in the coordinator's clock.

    A lease is five heartbeats, where heartbeats come on time. A network that loses packets delivers them late and in
    bursts, so a node that was late recently gets more time, up to a limit. So a cut cable is noticed within five
    heartbeats on a good network, and on a bad one no node is lost for being late. The idea is that of the accrual
    failure detectors: to judge a silence by the silences before it.
    """

    heard_at: float
    """When its last message came."""
    awaited_from: float
    """The time since which its next message is awaited: when its last one came, or later if none could come till then,
    as while the coordinator slept."""
    heartbeat_s: float = 0.0
    """The heartbeat interval that it was last granted, and keeps to; 0 before the first message to it. The next one may
    be another, since nodes of any job join and leave."""
    late_s: float = 0.0
    """How many seconds later than due its recent messages came; older lateness fades."""
    answer_late_s: float = 0.0
    """How many seconds overdue a message to the node was when it sent its last one; 0 if it was on time."""
    expired: bool = False
    """Whether the lease is over."""
    spared_at: float | None = None
    """When it was last given another lease, though it had been silent for a whole one; None if it never was."""

    def record_heard(self, unanswered_s: float, policy: Policy, now: float) -> None:
        """Record that a message came; the node had received nothing for `unanswered_s` seconds when it sent it.

        The lateness of the coordinator's messages counts when one of them arrives at the node. Only then is it known
        how long the node had to wait.
        """
        due_s = self.heartbeat_s * (1 + LATENESS_IGNORED)
        answer_late_s = max(0.0, unanswered_s - due_s) if due_s else 0.0
        had_waited_s = self.answer_late_s if answer_late_s < self.answer_late_s else 0.0
        self.answer_late_s = answer_late_s
        late_s = max(0.0, now - self.awaited_from - due_s, had_waited_s)
        if late_s or self.late_s:
            most_s = policy.heartbeats_per_lease * self.heartbeat_s * (policy.lease_stretch_max - 1) / LATENESS_FORGIVEN
            self.late_s = min(max(late_s, self.late_s * FADES_TO + late_s * ADDS_UP_BY), most_s)
        self.heard_at = self.awaited_from = now

    def is_punctual(self, now: float) -> bool:
        """Whether the node is on time now, and has been lately: if its connection closes, its process most likely died.

        Otherwise its network is bad, and has most likely broken the connection too.
        """
        silent_s = now - self.awaited_from
        return max(silent_s - self.heartbeat_s, self.late_s) <= LATENESS_IGNORED * self.heartbeat_s

    def is_in_touch(self) -> bool:
        """Whether messages have come on time in both directions, also lately."""
        return self.late_s <= LATENESS_IGNORED * self.heartbeat_s and not self.answer_late_s

    def length_s(self, policy: Policy, heartbeat_s: float) -> float:
        """Return the lease in seconds of a node that is granted this heartbeat."""
        return min(policy.heartbeats_per_lease * heartbeat_s + LATENESS_FORGIVEN * self.late_s, DURATION_S_MAX)


class MemberState(StrEnum):
    """The state of a node in its run; exactly one of these at any time."""

    PREPARING = "preparing"
    """The node is outside the round, and can have no workers yet: it still imports their modules."""
    READY = "ready"
    """The node is outside the round and has no workers: it can be given the next round."""
    QUARANTINED = "quarantined"
    """The node is outside the round and has no workers. Its host is quarantined, and the next round can do without."""
    HANDING_OVER = "handing_over"
    """The node is outside the round and is to leave. It waits until others have the state that only it keeps."""
    STALE = "stale"
    """The node is outside the round, and still has workers of an older one."""
    DISCONNECTED = "disconnected"
    """The node is outside the round. Its session is closed; or its lease is over, and it is about to be lost."""
    ASSIGNED = "assigned"
    """The node is in the round, and has not yet reported its workers as running."""
    RUNNING = "running"
    """The node is in the round, and its workers run, or have all succeeded and that is not recorded yet."""
    STOPPING = "stopping"
    """The node is in the round, and ends its workers."""
    STOPPED = "stopped"
    """The node is in the round. Its workers are confirmed dead, and not all of them succeeded."""
    SUCCEEDED = "succeeded"
    """The node is in the round. All its workers have exited with 0, and that is recorded."""
    SILENT = "silent"
    """The node is in the round, and its lease is over."""
    RELEASED = "released"
    """The node is outside the round. It has its outcome, and was asked to exit. It no longer counts."""


MAY_HAVE_WORKERS = (MemberState.ASSIGNED, MemberState.RUNNING, MemberState.STOPPING)
"""The states of nodes for which a round has to wait before it is over. A silent node may have workers as well, but
nobody waits for it. A stale one has workers of an older round."""

IN_ROUND = (*MAY_HAVE_WORKERS, MemberState.STOPPED, MemberState.SUCCEEDED, MemberState.SILENT)
"""The states of nodes that have a part in the current round."""

UNHEARD = Observed(run="", round=0, phase=Phase.IDLE, port=1, leaving=False, failure=None, heard_s=0.0, beat=False)
"""Stands for the report of a node that has not reported yet. The port is not used."""

_NOTHING_HELD = Holding(())


@dataclass(slots=True, eq=False)
class Session:
    """The open or last connection of a node; after a restart of the daemon, the recorded one until it connects."""

    peer_address: str
    """The address from which the node is connected."""
    local_address: str
    """The coordinator's own address of the connection."""
    token: str
    """The name of the access token of the connection; empty if it had none."""
    id: int | None = None
    """Its number; None if it is not open."""
    join: Join | None = None
    """The first message of the node; None before its first session with this life of the daemon."""
    connected_at: float = LONG_AGO
    closed_at: float | None = None
    """When it ended; None while it has not."""
    vanished: bool = False
    """Whether it ended while the network was good: the node's process most likely died."""
    revoked: bool = False
    """Whether its token is no longer valid, so that the node may come with any other one."""
    differs_from: str = ""
    """A node that had another command when this one joined, probably by mistake; empty if none is known."""
    sent: Desired | None = None
    """The last message that the node was sent."""
    sent_revision: int = 0
    """The revision of its run from which that message was made."""


@dataclass(slots=True, eq=False)
class Readiness:
    """When a node arrived for the next round, and whether that round takes it."""

    arrived_at: float
    """When it last arrived, in the coordinator's clock."""
    has_arrived: bool
    """Whether it was ready or in a round before. If so, it does not arrive again when it reconnects, and only waits."""
    preparing_since: float | None = None
    """When it began to prepare; None if it has not reported that it prepares."""
    quarantined: str = ""
    """Why rounds do without the node if they can; empty if they do not."""
    enlisted: bool = False
    """Whether the next round takes the node though it is quarantined, since too few others are there."""


@dataclass(slots=True, eq=False)
class Member:
    """A node in a run, as this life of the daemon knows it; `durable` outlives the daemon."""

    durable: DurableMember
    node: str = field(init=False)
    incarnation: int = field(init=False)
    offer: NodeOffer = field(init=False)
    """`node`, `incarnation` and `offer` are copies from `durable`, where they never change."""
    session: Session = field(init=False)
    lease: Lease = field(init=False)
    readiness: Readiness = field(init=False)
    observed: Observed = UNHEARD
    remark: str = ""
    """A warning for its user, until its workers run; empty if there is none."""
    hands_over: bool = False
    """Whether it is to leave, and first hands over its kept state."""
    drained: str = ""
    """Why it is drained, and so is to leave; empty if it is not."""
    state: MemberState = MemberState.DISCONNECTED

    def __post_init__(self) -> None:
        """Begin with the values from the records."""
        durable = self.durable
        self.node, self.incarnation, self.offer = durable.node, durable.incarnation, durable.offer
        self.session = Session(durable.peer_address, durable.local_address, durable.token)
        self.lease = Lease(heard_at=durable.joined_at, awaited_from=durable.joined_at)
        self.readiness = Readiness(arrived_at=durable.joined_at, has_arrived=durable.has_taken_part)

    @property
    def keeper(self) -> Keeper | None:
        """How other nodes get its kept state; None if it can keep none, or has not joined this life of the daemon."""
        return self.session.join.keeper if self.session.join is not None else None

    @property
    def holding(self) -> Holding:
        """What it last reported to keep, perhaps of another run; empty if it keeps nothing."""
        return self.observed.kept or _NOTHING_HELD

    @property
    def persist(self) -> PersistOffer | None:
        """Its settings for steps on a disk; None if it looks at no disk, or has not joined this life of the daemon."""
        return self.keeper.persist if self.keeper is not None else None

    @property
    def lacks_persist(self) -> bool:
        """Whether it keeps state in memory, and looks at no disk."""
        return self.keeper is not None and self.keeper.persist is None

    @property
    def seat(self) -> Seat:
        """The facts that determine its rank."""
        offer = self.offer
        return Seat(self.node, offer.host, offer.topology, offer.workers, offer.role, offer.group_rank)

    @property
    def is_connected(self) -> bool:
        """Whether it has a session, its lease is not over, and it was not released."""
        return self.session.id is not None and not self.lease.expired and self.durable.outcome is None

    @property
    def leaves(self) -> bool:
        """Whether it is to leave, because its own user wants that or it is drained."""
        return self.observed.leaving or bool(self.drained)

    @property
    def silent_since(self) -> float:
        """When it may have fallen silent: when its session closed, or at its last message if the session is open."""
        closed_at = self.session.closed_at
        return self.lease.heard_at if closed_at is None else closed_at

    @property
    def lived_at(self) -> float:
        """When it last gave a sign of life: a message, or the end of a session. A restart of the daemon is one, too."""
        return max(self.lease.heard_at, self.silent_since)

    @property
    def in_doubt(self) -> bool:
        """Whether it was silent for a lease, was given more time, and has not been heard since."""
        return self.lease.spared_at is not None and self.lived_at < self.lease.spared_at

    def state_in(self, run: str, round_number: int) -> MemberState:
        """Work out where the node stands, given the run and its current round."""
        durable = self.durable
        if durable.assignment is not None:  # asked first: a node released in its round stays until that is over
            return self._state_inside(run, round_number)
        if durable.outcome is not None:
            return MemberState.RELEASED
        if self.lease.expired or self.session.id is None:
            return MemberState.DISCONNECTED
        if self.observed.phase is Phase.PREPARING:
            return MemberState.PREPARING
        if self.observed.phase.has_workers:
            return MemberState.STALE
        is_left_out = self.readiness.quarantined and not self.readiness.enlisted
        at_rest = MemberState.QUARANTINED if is_left_out else MemberState.READY
        return MemberState.HANDING_OVER if self.hands_over else at_rest

    def _state_inside(self, run: str, round_number: int) -> MemberState:
        if self.durable.succeeded:
            return MemberState.SUCCEEDED
        if self.lease.expired:
            return MemberState.SILENT
        has_begun = self.observed.run == run and self.observed.round == round_number
        return _STATE_OF[self.observed.phase] if has_begun else MemberState.ASSIGNED


_STATE_OF = CompleteMap[Phase, MemberState]("states of a node in its round")
_STATE_OF |= {
    Phase.PREPARING: MemberState.ASSIGNED,
    Phase.IDLE: MemberState.STOPPED,  # it knows of the round, and no worker of it lives
    Phase.STARTING: MemberState.ASSIGNED,
    Phase.RUNNING: MemberState.RUNNING,
    Phase.STOPPING: MemberState.STOPPING,
    Phase.STOPPED: MemberState.STOPPED,
    Phase.FAILED: MemberState.STOPPED,
    Phase.SUCCEEDED: MemberState.RUNNING,  # until the success is recorded
}
