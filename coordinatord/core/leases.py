"""When nodes count as silent: the ends of their leases, put off by the time in which the coordinator was asleep."""

from __future__ import annotations

from collections.abc import Sequence

from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.state.member import Member, MemberState
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.deadline_heap import DeadlineHeap
from coordinatord.core.rounds.values.due_times import LONG_AGO, NOW
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


class SleepWatch:
    """Notices that the coordinator was asleep: stopped, swapped out, or too busy to read messages.

    Without it, a daemon that was stopped for ten seconds would find leases over when it wakes, though it has not yet
    read the heartbeats that came meanwhile. The coordinator checks the clock at regular times. A late check shows a
    sleep, and all deadlines of nodes are put off by its length. While the store works, the machine calls `on_event` for
    each event. It calls `wake` if an event shows a sleep, and after an outage of the store. It calls `expect_return`
    when a connection closes.
    """

    def __init__(self) -> None:
        self.awake_at = LONG_AGO
        """When the coordinator was last awake for sure: the time of the last event that was handled on time."""
        self.woke_at = LONG_AGO
        """When the last sleep ended, or the last outage of the store."""
        self.check_at = NOW
        """When to check the clock again."""
        self._returns_until = NOW
        """The time until which a node whose connection has closed may reconnect. It has only a second, and a sleep of
        less than a heartbeat would take most of that. So the clock is checked more often, and a shorter delay counts as
        late."""
        self.closes_count_from = NOW
        """A connection that closes before this time is no sign of death: its node may have given it up in a sleep."""

    def begin(self, policy: Policy, now: float) -> None:
        """Begin to watch."""
        self.awake_at = self.woke_at = now
        self.schedule_check(policy, now)

    def schedule_check(self, policy: Policy, now: float) -> None:
        """Schedule the next check a heartbeat later, or sooner while a node has only a short time to reconnect."""
        is_short = now < self._returns_until
        self.check_at = now + (policy.reconnect_grace_s / 4 if is_short else policy.heartbeat_s)

    def expect_return(self, policy: Policy, now: float) -> None:
        """Check more often while a node whose connection has just closed may reconnect."""
        self._returns_until = now + policy.reconnect_grace_s
        self.check_at = min(self.check_at, now + policy.reconnect_grace_s / 4)

    def on_event(self, due: float | None, least_s: float, policy: Policy, now: float) -> bool:
        """Record an event; return whether it shows a sleep that may have lasted for more than `least_s` seconds.

        `due` is when the machine was to be called at the latest. An event long after that shows a sleep, which may have
        begun right after `awake_at`. The caller takes no notice of a sleep of `least_s` or less.
        """
        tolerated_s = policy.heartbeat_s
        if self.awake_at < self._returns_until:  # not `now`: that time may have passed in the sleep
            tolerated_s = min(tolerated_s, policy.reconnect_grace_s / 2)
        is_late = due is not None and now - due > tolerated_s
        if not is_late:
            self.awake_at = now
        if now >= self.check_at:
            self.schedule_check(policy, now)
        return is_late and now - self.awake_at > least_s

    def wake(self, policy: Policy, now: float) -> float:
        """End a sleep; return how many seconds it may have lasted."""
        asleep_s = now - self.awake_at
        if self.awake_at < self._returns_until:
            self._returns_until += asleep_s  # the sleep took this time from the node
        self.closes_count_from = now + policy.reconnect_grace_s
        self.begin(policy, now)
        return asleep_s
