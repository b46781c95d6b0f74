"""The members of one run, indexed by their state, and when they were heard.

Conditions of the run's table mostly ask how many nodes are in some state, and are asked after each event. With 10,000
nodes they cannot look at each, so the index answers in O(1).
"""

from __future__ import annotations

from collections.abc import Iterator

from coordinatord.core.rounds.state.durable import DurableRun
from coordinatord.core.rounds.state.member import IN_ROUND, MAY_HAVE_WORKERS, Member, MemberState


class Roll:
    """The members of one run. `place` has to be called after each change that may change a member's state."""

    def __init__(self, durable: DurableRun) -> None:
        self._durable = durable
        self.members: dict[str, Member] = {}
        self.workers = 0
        """How many workers all members have together."""
        self.missing = dict.fromkeys(durable.order)
        """Nodes of the current or last round that are not members; a waiting run names them to its users."""
        self.changes = 0
        """Counts the changes of members' states and connections; see `Run.revision`."""
        self.heard_at = 0.0
        """When any member was last heard."""
        self.expired_at = 0.0
        """When the lease of a member last ended."""
        self.others_heard = False
        """Whether nodes of other jobs were still heard when the last node of this one fell silent: then the network of
        the coordinator is good."""
        self._by_state: dict[MemberState, dict[str, Member]] = {state: {} for state in MemberState}
        self._connected: set[str] = set()
        self._remaining: set[str] = set()
        """The nodes that are not to leave."""
        self._on_quarantined_hosts: dict[MemberState, set[str]] = {
            MemberState.READY: set(),
            MemberState.PREPARING: set(),
        }
        """The nodes on quarantined hosts that are ready for the next round or prepare for it."""

    def add(self, member: Member) -> None:
        """Add a member."""
        self.members[member.node] = member
        self.workers += member.offer.workers
        self.missing.pop(member.node, None)
        self.place(member)

    def place(self, member: Member) -> None:
        """Index a member, new or changed, by its present state."""
        node = member.node
        state = member.state_in(self._durable.id, self._durable.round)
        if state is not member.state:
            self.changes += 1
            self._by_state[member.state].pop(node, None)
        member.state = state
        self._by_state[state][node] = member  # it keeps its place, so that texts name nodes in the same order
        if member.is_connected is not (node in self._connected):
            self.changes += 1  # others are told from which connected nodes they can get kept state
            self._connected ^= {node}
        (self._remaining.discard if member.leaves else self._remaining.add)(node)
        for each, nodes in self._on_quarantined_hosts.items():
            if state is each and member.readiness.quarantined:
                nodes.add(node)
            else:
                nodes.discard(node)

    def place_all(self) -> None:
        """Index all members by their present states."""
        for member in list(self.members.values()):
            self.place(member)

    def remove(self, member: Member) -> None:
        """Remove a member."""
        node = member.node
        del self.members[node]
        self.workers -= member.offer.workers
        if node in self._durable.order:
            self.missing[node] = None
        del self._by_state[member.state][node]
        self._connected.discard(node)
        self._remaining.discard(node)
        for nodes in self._on_quarantined_hosts.values():
            nodes.discard(node)

    @property
    def inside(self) -> Iterator[Member]:
        """Iterate over the members that are in the current round."""
        return (member for member in self.members.values() if member.durable.in_round)

    @property
    def heartbeat_s(self) -> float:
        """The longest heartbeat interval that a node of the current round was last granted; 0 if none was."""
        return max((member.lease.heartbeat_s for member in self.inside), default=0.0)

    def in_state(self, *states: MemberState) -> Iterator[Member]:
        """Iterate over the members of some states."""
        for state in states:
            yield from self._by_state[state].values()

    def count(self, *states: MemberState) -> int:
        """Count the members of some states."""
        number = 0
        for state in states:  # a sum over a generator takes twice as long, and every event asks this often
            number += len(self._by_state[state])
        return number

    def count_good(self, state: MemberState) -> int:
        """Count the members that are ready or prepare, as `state` says, on hosts that are not quarantined."""
        return self.count(state) - len(self._on_quarantined_hosts[state])

    @property
    def connected(self) -> bool:
        """Whether any member has a session, and its lease is not over."""
        return bool(self._connected)

    @property
    def all_leave(self) -> bool:
        """Whether each member is to leave."""
        return not self._remaining

    @property
    def deserted(self) -> bool:
        """Whether all sessions are closed and all leases over; a silent member with an open session may come back."""
        return all(member.session.id is None and member.lease.expired for member in self.members.values())

    @property
    def unreleased(self) -> int:
        """How many members there are, without those that were released."""
        return len(self.members) - self.count(MemberState.RELEASED)

    @property
    def round_size(self) -> int:
        """How many nodes are left in the current round."""
        return self.count(*IN_ROUND)

    @property
    def with_workers(self) -> int:
        """How many nodes of the round may still have workers."""
        return self.count(*MAY_HAVE_WORKERS)

    @property
    def all_silent(self) -> bool:
        """Whether nodes of the round are silent, and no member is heard."""
        return bool(self.count(MemberState.SILENT)) and not self._connected

    @property
    def doubtful(self) -> list[Member]:
        """The nodes of the round that were silent for a lease, got more time, and have not been heard since."""
        return [member for member in self.in_state(*MAY_HAVE_WORKERS) if member.in_doubt]
