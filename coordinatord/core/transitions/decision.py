"""What one event has led to so far: records, sessions that end, and which nodes may have to be told something new."""

from __future__ import annotations

from coordinatord.core.effects import Answer, Close, Refuse
from coordinatord.core.policy import Policy
from coordinatord.core.state.cluster import Cluster
from coordinatord.core.state.member import Member
from coordinatord.core.state.run import Run
from coordinatord.core.transitions.apply import apply
from coordinatord.core.transitions.follow import follow
from coordinatord.core.values.records import Record


class Decision:
    """Filled while one event is handled, at `now`; the machine makes a `Batch` of it at the end."""

    def __init__(self, cluster: Cluster, policy: Policy, now: float) -> None:
        self.cluster, self._policy, self.now = cluster, policy, now
        self.records: list[Record] = []
        self.endings: list[Refuse | Close | Answer] = []
        self.answers: dict[int, tuple[Run, Member]] = {}
        """By session: nodes that get their desired state in any case."""
        self.news: dict[int, tuple[Run, Member]] = {}
        """By session: nodes that get it if their goal has changed."""

    def record(self, record: Record) -> None:
        """Let something happen that is to be remembered: it takes effect, and becomes a part of the history."""
        apply(self.cluster.durable, record, self.now)
        follow(self.cluster, record, self._policy)
        self.records.append(record)

    def close(self, member: Member) -> None:
        """End the session of a node that is no longer a member, if it has one."""
        if member.session is not None:
            self.endings.append(Close(member.session))

    def answer(self, run: Run, member: Member) -> None:
        """Tell this node what is desired of it, even if that is nothing new."""
        if member.session is not None:
            self.answers[member.session] = (run, member)

    def tell(self, run: Run, member: Member) -> None:
        """Tell this node what is desired of it, if that is another goal than it last heard."""
        if member.session is not None:
            self.news[member.session] = (run, member)

    def tell_all(self, run: Run) -> None:
        """Tell every member whose goal has changed."""
        for member in run.members.values():
            self.tell(run, member)
