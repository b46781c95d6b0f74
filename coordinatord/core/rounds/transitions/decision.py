"""Collects the consequences of one event: records, sessions to close, answers to operators, nodes to send a message.

Messages are made only at the end of the event. So a node is sent one at most, with the state to which all records led,
however many rows of the table were taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from coordinatord.core.rounds.effects import Answer, Close, Look, Refuse, Send
from coordinatord.core.rounds.queries.desired_state import knows_goal, message_to
from coordinatord.core.rounds.state.cluster import Cluster
from coordinatord.core.rounds.state.member import Member, MemberState
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.transitions.apply import apply
from coordinatord.core.rounds.values.records import REASON_MAX, Record
from coordinatord.protocol.text import clip


class Decision:
    """The consequences of one event, at `now`; the machine makes a `Batch` of it at the end."""

    __slots__ = ("cluster", "endings", "looks", "notified", "now", "recipients", "records")

    def __init__(self, cluster: Cluster, now: float) -> None:
        self.cluster, self.now = cluster, now
        self.records: list[Record] = []
        self.endings: list[Refuse | Close | Answer] = []
        """The effects that close a session of a node, or answer a request of an operator."""
        self.looks: list[Look] = []
        self.recipients: dict[int, tuple[Run, Member]] = {}
        """The nodes that are sent their desired state even if it is unchanged, keyed by session."""
        self.notified: dict[int, tuple[Run, Member]] = {}
        """The nodes that are sent their desired state only if they do not know it (`knows_goal`), keyed by session."""

    def record(self, record: Record) -> None:
        """Add a record, and apply it at once to the durable and to the live state.

        A reason that is too long for a record is cut: it may quote texts of many nodes.
        """
        if len(record.reason) > REASON_MAX:
            record = replace(record, reason=clip(record.reason, REASON_MAX))
        apply(self.cluster.durable, record, self.now)
        self.cluster.follow(record, self.now)
        self.records.append(record)

    def record_all(self, records: Iterable[Record]) -> None:
        """Add records, each of which may depend on the one before it."""
        for record in records:
            self.record(record)

    def close(self, member: Member) -> None:
        """End the session of a node that is no longer a member, if it has one."""
        if member.session.id is not None:
            self.endings.append(Close(member.session.id))

    def send(self, run: Run, member: Member) -> None:
        """Send this node its desired state, even if that is unchanged."""
        if member.session.id is not None:
            self.recipients[member.session.id] = (run, member)

    def notify(self, run: Run, member: Member) -> None:
        """Send this node its desired state, if something that is sent at once differs from the last message."""
        if member.session.id is not None:
            self.notified[member.session.id] = (run, member)

    def notify_all(self, run: Run) -> None:
        """Notify every member."""
        for member in run.members.values():
            self.notify(run, member)

    def messages(self, heartbeat_s: float) -> Iterator[Send]:
        """Yield the messages to nodes, with this heartbeat interval."""
        for session, (run, member) in (self.notified | self.recipients).items():
            # While a run is live, a silent node has no goal (`GOALS`): it is sent one when it is heard.
            has_goal = run.durable.state.ended or member.state is not MemberState.SILENT
            if member.session.id != session or not has_goal:
                continue
            if session in self.recipients or not knows_goal(run, member):
                yield send_desired(session, run, member, heartbeat_s, self.now)


def send_desired(session: int, run: Run, member: Member, heartbeat_s: float, now: float) -> Send:
    """Return the effect that sends a node its desired state, with this heartbeat; record it as the last message.

    The message names the nodes to fetch kept state from, so they are chosen first if no choice stands.
    """
    run.keeping.choose_sources()
    member.lease.heartbeat_s = heartbeat_s
    message = message_to(run, member, heartbeat_s, now)
    if message is not member.session.sent:  # a repeated message has the present revision
        member.session.sent, member.session.sent_revision = message, run.revision
    return Send(session, message)
