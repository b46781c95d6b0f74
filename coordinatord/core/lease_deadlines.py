"""When the lease of each member ends, for all runs: then the node is silent, and may count as lost.

`Lease` works out how long a lease is. Here are the deadlines, which the machine moves.
"""

from __future__ import annotations

from collections.abc import Sequence

from coordinatord.core.rounds.state.member import Member, MemberState
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.deadline_heap import DeadlineHeap
from coordinatord.core.rounds.values.records import NodeLost, Record


class LeaseDeadlines(DeadlineHeap[tuple[str, str]]):
    """The ends of the members' leases, by run id and node. A member whose lease is over has none."""

    def renew(self, run: Run, member: Member, heartbeat_s: float, now: float) -> None:
        """Begin the lease of a member anew."""
        self.set((run.id, member.node), now + _lease_s(run, member, heartbeat_s))

    def renew_all(self, run: Run, heartbeat_s: float, now: float) -> None:
        """Grant every silent member a full lease: all were silent, and one is heard again."""
        for member in list(run.roll.in_state(MemberState.SILENT)):
            member.lease.expired, member.lease.spared_at = False, now
            self.renew(run, member, heartbeat_s, now)
            run.roll.place(member)

    def shorten(self, run: Run, member: Member, now: float) -> None:
        """Shorten a lease to the reconnect grace, as the member's connection has closed, unless its network is bad.

        The process has most likely died (`Session.vanished`): if it lived, it would reconnect within the grace. If its
        token was revoked, it has not vanished, since the coordinator itself has closed the connection.
        """
        ends_at = self.get((run.id, member.node))
        if ends_at is not None and member.lease.is_punctual(now):
            member.session.vanished = not member.session.revoked
            grace = now + run.policy.reconnect_grace_s
            self.set((run.id, member.node), min(ends_at, grace))

    def drop_lost(self, run: Run, records: Sequence[Record]) -> None:
        """Remove the leases of the nodes that these records count as lost.

        If a younger process with the same node id has replaced a lost one, the lease is that of the younger, and stays.
        """
        for record in records:
            if isinstance(record, NodeLost) and record.node not in run.members:
                self.discard((run.id, record.node))

    def extend_after_outage(self, run: Run, heartbeat_s: float, now: float) -> None:
        """Leave each node at least one lease, or a grace to reconnect, after a time without decisions.

        Leases are not put off by that time, since nodes were heard meanwhile: a long outage of the store must not make
        nodes wait as long for one that is gone.
        """
        for member in run.members.values():
            ends_at = self.get((run.id, member.node))
            if ends_at is not None:
                if ends_at < now:
                    member.lease.spared_at = now
                connected = member.session.id is not None
                chance_s = _lease_s(run, member, heartbeat_s) if connected else run.policy.reconnect_grace_s
                self.set((run.id, member.node), max(ends_at, now + chance_s))


def _lease_s(run: Run, member: Member, heartbeat_s: float) -> float:
    """Return the seconds of a lease: at least those granted last, with the heartbeat that the member keeps to."""
    granted = 0.0 if member.session.sent is None else member.session.sent.lease_s
    return max(granted, member.lease.length_s(run.policy, heartbeat_s))
