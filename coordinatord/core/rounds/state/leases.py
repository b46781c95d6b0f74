"""When the lease of each member ends, for all runs."""

from __future__ import annotations

from collections.abc import Sequence

from coordinatord.core.rounds.state.member import Member, MemberState
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.deadline_heap import DeadlineHeap
from coordinatord.core.rounds.values.records import NodeLost, Record


def _held_s(run: Run, member: Member, heartbeat_s: float) -> float:
    """Return the lease that a member has: never less than it was granted last, since it still keeps that heartbeat."""
    granted = 0.0 if member.session.sent is None else member.session.sent.lease_s
    return max(granted, member.lease.length_s(run.policy, heartbeat_s))


class Leases(DeadlineHeap[tuple[str, str]]):
    """Lease deadlines of the members, keyed by (run id, node). A member whose lease is over has none."""

    def renew(self, run: Run, member: Member, heartbeat_s: float, now: float) -> None:
        """Begin the lease of a member anew."""
        self.set((run.id, member.node), now + _held_s(run, member, heartbeat_s))

    def renew_all(self, run: Run, heartbeat_s: float, now: float) -> None:
        """Give every silent member a full lease, when the first one is heard after all were silent."""
        for member in list(run.roll.in_state(MemberState.SILENT)):
            member.lease.expired, member.lease.spared_at = False, now
            self.renew(run, member, heartbeat_s, now)
            run.roll.place(member)

    def shorten(self, run: Run, member: Member, heartbeat_s: float, now: float) -> None:
        """Give a member whose connection has closed the time to come back; one on a bad network keeps its lease."""
        lease = self.get((run.id, member.node))
        if lease is not None and member.lease.is_punctual(heartbeat_s, now):
            member.session.vanished = not member.session.revoked
            grace = now + run.policy.reconnect_grace_s
            self.set((run.id, member.node), min(lease, grace))

    def drop_lost(self, run: Run, records: Sequence[Record]) -> None:
        """End the leases of nodes that count as lost by these records, though their time was not over."""
        for record in records:
            if isinstance(record, NodeLost) and record.node not in run.members:
                self.discard((run.id, record.node))

    def give_chance(self, run: Run, heartbeat_s: float, degraded_s: float, now: float) -> None:
        """Give each node one lease, or a grace to connect, after a time in which none could be judged.

        Nodes were heard in that time, and all leases have been moved by it. A lease of which more was left keeps that.
        """
        for member in run.members.values():
            moved = self.get((run.id, member.node))
            if moved is not None:
                if moved - degraded_s < now:
                    member.lease.spared_at = now
                connected = member.session.id is not None
                chance_s = _held_s(run, member, heartbeat_s) if connected else run.policy.reconnect_grace_s
                self.set((run.id, member.node), max(moved - degraded_s, now + chance_s))
