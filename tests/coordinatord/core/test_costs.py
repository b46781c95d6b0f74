"""What things cost, in messages, records, commits and looks, counted exactly: never in time.

A cost that grows with the number of nodes where it should not, or a message more for each node, shows here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from coordinatord.core.journal import Journal
from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.effects import Effect, Send
from coordinatord.core.rounds.events import Connected, Disconnected, Event, Reported, Tick
from coordinatord.core.rounds.queries import desired_state
from coordinatord.core.rounds.state.member import Member
from coordinatord.core.rounds.state.roll import Roll
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.transitions import observations, table
from coordinatord.core.rounds.values.judged_host import JudgedHost
from coordinatord.core.rounds.values.records import (
    Record,
    RoundEnded,
    RoundFormed,
    RoundStarted,
    RoundStopped,
    TrainingBegan,
)
from coordinatord.core.shown.job_view import job_view
from coordinatord.protocol.codec import encode
from coordinatord.protocol.messages import QUIET, Goal, Observed, Phase
from tests.support.builders import a_coordinator, a_join, a_spec, an_observed

SIZES = (8, 64)


class Cluster:
    """Nodes that do at once what they are asked for, and a disk that is asked for one commit at a time."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.now = 0.0
        self.machine: Coordinator = a_coordinator()
        self.journal = Journal()
        self.commits: list[list[type[Record]]] = []
        self.sends: list[Send] = []
        for session in range(1, size + 1):
            join = a_join(f"n{session}", spec=a_spec(nodes_min=size - 1, nodes_max=size))
            self.handle(Connected(session, join, f"10.0.0.{session}", "10.0.0.254"))
        self.commit()

    @property
    def run(self) -> Run:
        """Return the only run."""
        return self.machine.jobs["default"]

    def handle(self, event: Event) -> None:
        """Handle an event."""
        self._send(self.journal.add(self.machine.handle(event, self.now), self.now))

    def commit(self) -> None:
        """Make durable what was decided, until there is nothing more to be."""
        while decided := self.journal.begin():
            self.commits.append([type(record) for _, record in decided])
            self._send(self.journal.finish())

    def report(self, phase: Phase, *, beat: bool = False) -> None:
        """Have all nodes that are there report their phase in the current round."""
        for member in list(self.run.members.values()):
            assert member.session.id is not None
            self.handle(Reported(member.session.id, self.observed(phase, beat=beat)))

    def observed(self, phase: Phase, *, beat: bool) -> Observed:
        """Return a node's report."""
        return an_observed(run=self.run.id, round=self.run.durable.round, phase=phase, beat=beat)

    def lose_one(self) -> None:
        """Remove one node without a message."""
        self.handle(Disconnected(1))
        end = self.now + self.machine.policy.reconnect_grace_s
        while (due := self.machine.next_deadline()) is not None and due <= end:
            self.now = due
            self.handle(Tick())
        self.commit()

    def goals(self) -> dict[int, list[Goal]]:
        """Return the goals that each session received since the last call."""
        sends: dict[int, list[Goal]] = {}
        for send in self.sends:
            sends.setdefault(send.session, []).append(send.message.goal)
        self.sends.clear()
        return sends

    def running(self) -> Cluster:
        """Bring the cluster into a running round, and forget what that has cost."""
        self.report(Phase.RUNNING)
        self.commit()
        self.commits.clear()
        self.sends.clear()
        return self

    def _send(self, effects: Iterable[Effect]) -> None:
        self.sends += [effect for effect in effects if isinstance(effect, Send)]


@pytest.mark.parametrize("size", SIZES)
def test_a_round_is_one_message_each_way_for_every_node_and_two_commits(size: int) -> None:
    cluster = Cluster(size)
    assert {tuple(goals) for goals in cluster.goals().values()} == {(Goal.RUN,)}, "in place of the wait of the join"
    cluster.commits.clear()
    cluster.report(Phase.RUNNING)
    cluster.commit()
    assert cluster.goals() == {}
    assert cluster.commits == [[RoundStarted]]


@pytest.mark.parametrize("size", SIZES)
def test_to_form_again_is_two_messages_each_way_for_every_node_that_is_left(size: int) -> None:
    cluster = Cluster(size).running()
    cluster.lose_one()
    assert cluster.goals() == {session: [Goal.STOP] for session in range(2, size + 1)}
    cluster.report(Phase.STOPPED)
    cluster.commit()
    assert cluster.goals() == {session: [Goal.RUN] for session in range(2, size + 1)}
    cluster.report(Phase.RUNNING)
    cluster.commit()
    assert cluster.goals() == {}
    stop, again, start = cluster.commits
    assert stop[0] is RoundStopped
    assert (again, start) == ([RoundEnded, RoundFormed], [RoundStarted])


def test_what_each_node_is_sent_of_a_round_does_not_grow_with_their_number() -> None:
    lengths = []
    for size in SIZES:
        cluster = Cluster(size).running()
        cluster.lose_one()
        cluster.report(Phase.STOPPED)
        cluster.commit()
        lengths.append(max(len(encode(send.message)) for send in cluster.sends))
    assert max(lengths) < 600
    assert abs(lengths[0] - lengths[1]) <= 40, "names are counted beyond eight, numbers have a digit more"


def test_the_quiet_fields_of_a_report_are_fields_of_it() -> None:
    assert set(Observed.__struct_fields__) > QUIET


@pytest.mark.parametrize("size", SIZES)
def test_a_heartbeat_touches_one_member_and_looks_at_no_row(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(size).running()
    cluster.report(Phase.RUNNING, beat=True)
    cluster.sends.clear()
    looks = _count_calls(
        monkeypatch, (table, "next_row"), (Roll, "place"), (observations, "record_report"), (desired_state, "Desired")
    )
    cluster.now += 1.0
    before = {member.node: (member.lease.heard_at, member.session.sent) for member in cluster.run.members.values()}
    cluster.handle(Reported(2, cluster.observed(Phase.RUNNING, beat=True)))
    touched = [node for node, member in cluster.run.members.items() if member.lease.heard_at != before[node][0]]
    assert (touched, len(cluster.sends), cluster.commits, dict(looks)) == (["n2"], 1, [], {})
    assert cluster.sends[0].message is before["n2"][1], "the very same message, so that it is not encoded again"


@pytest.mark.parametrize("size", SIZES)
def test_a_first_step_is_recorded_and_the_next_ones_cost_what_a_heartbeat_does(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(size).running()
    for session in (2, 3):
        cluster.handle(Reported(session, replace(cluster.observed(Phase.RUNNING, beat=True), steps=(0,))))
    cluster.commit()
    assert cluster.commits == [[TrainingBegan]]
    looks = _count_calls(monkeypatch, (table, "next_row"), (Roll, "place"), (observations, "record_report"))
    for step, session in enumerate((2, 3, 4), 1):
        cluster.handle(Reported(session, replace(cluster.observed(Phase.RUNNING, beat=True), steps=(step,))))
    assert dict(looks) == {}


@pytest.mark.parametrize("size", SIZES)
def test_a_report_looks_once_at_the_rows_and_moves_one_member(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(size)
    looks = _count_calls(monkeypatch, (table, "next_row"), (Roll, "place"))
    cluster.handle(Reported(2, cluster.observed(Phase.RUNNING, beat=False)))
    assert dict(looks) == {"next_row": 1, "place": 1}


@pytest.mark.parametrize("size", SIZES)
def test_a_node_that_joins_has_only_its_own_host_looked_up(size: int) -> None:
    cluster = Cluster(size)
    looked_up: list[str] = []

    class Hosts(dict[str, JudgedHost]):
        def get(self, host: str, default: Any = None) -> Any:
            looked_up.append(host)
            return super().get(host, default)

    cluster.machine.cluster.durable.hosts = Hosts()
    cluster.handle(Connected(size + 1, a_join("late", spec=cluster.run.spec), "10.0.1.1", "10.0.0.254"))
    assert looked_up == ["host-late"]


@pytest.mark.parametrize("size", SIZES)
def test_a_tick_at_rest_looks_at_no_member(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(size).running()
    looks = _count_calls(monkeypatch, (table, "next_row"), (Roll, "place"), (Member, "state_in"))
    cluster.now += cluster.machine.policy.heartbeat_s
    cluster.handle(Tick())
    assert dict(looks) == {}


@pytest.mark.parametrize("size", SIZES)
def test_what_nodes_sent_during_a_sleep_moves_the_deadlines_of_all_once(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = a_coordinator()
    for session in range(1, size + 1):
        join = a_join(f"n{session}", spec=a_spec(nodes_min=2, nodes_max=100))
        machine.handle(Connected(session, join, f"10.0.0.{session}", "10.0.0.254"), 0.0)
    moves = _count_calls(monkeypatch, (Run, "postpone"))
    for session in range(1, size + 1):  # the loop reads all of them before its timers
        machine.handle(Reported(session, an_observed(beat=True)), 60.0 + session / 1_000)
    assert dict(moves) == {"postpone": 1}


def test_to_show_a_job_counts_its_round_once_and_not_for_each_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    for size in SIZES:
        machine = a_coordinator()
        for session in range(1, size + 1):
            join = a_join(f"n{session}", spec=a_spec(nodes_min=1, nodes_max=1))
            machine.handle(Connected(session, join, f"10.0.0.{session}", "10.0.0.254"), 0.0)
        with monkeypatch.context() as patch:
            looks = _count_calls(patch, (Roll, "count"))
            shown = job_view(machine.jobs["default"], 1.0, None)
        assert shown.spares == size - 1
        assert [node.state for node in shown.nodes] == ["assigned", *["spare"] * (size - 1)]
        counts.append(looks["count"])
    assert counts[0] == counts[1]


def test_an_answer_that_is_repeated_is_the_one_that_would_be_made() -> None:
    cluster = Cluster(8).running()
    heartbeat_s = cluster.machine.policy.heartbeat_for(cluster.size)
    for late_s in (0.0, 2.5, 0.0):
        cluster.now += heartbeat_s + late_s
        for member in cluster.run.members.values():
            assert member.session.id is not None
            cluster.handle(Reported(member.session.id, cluster.observed(Phase.RUNNING, beat=True)))
            assert member.session.sent == desired_state.desired(cluster.run, member, heartbeat_s, cluster.now)


def _count_calls(patch: pytest.MonkeyPatch, *places: tuple[object, str]) -> Counter[str]:
    """Count from now on how often some functions are called; they do what they did."""
    calls: Counter[str] = Counter()

    def watch(owner: object, name: str) -> None:
        function = getattr(owner, name)

        def counted(*arguments: object, **options: object) -> object:
            calls[name] += 1
            return function(*arguments, **options)

        patch.setattr(owner, name, counted)

    for owner, name in places:
        watch(owner, name)
    return calls
