"""What things cost, in messages, records, commits and looks, counted exactly: never in time.

A cost that grows with the number of nodes where it should not, or a message more for each node, shows here.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from coordinatord.core.rounds.effects import Batch, Send
from coordinatord.core.rounds.events import Event, Tick
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
from coordinatord.protocol.codec import encode
from coordinatord.protocol.messages import Goal
from tests.support.script import Stage, play

SIZE = 8

SIZES = (8, 64)
"""Where something must not grow with the number of nodes."""


class Job(Stage):
    """A job of so many nodes, of which a round can do without one. They send no heartbeats by themselves."""

    def __init__(self, size: int) -> None:
        super().__init__(heartbeat_s=1_000.0)
        self.sends: list[Send] = []
        self.commits: list[list[type[Record]]] = []
        """What was recorded at once."""
        self.nodes = [f"n{number}" for number in range(1, size + 1)]
        self.spec = f"min={size - 1} max={size}"
        self.play(f"join {' '.join(self.nodes[:-1])} {self.spec}")
        self.forget()
        self.play(f"join {self.nodes[-1]} {self.spec}")

    def handle(self, event: Event) -> Batch:
        """Handle an event, and note what follows."""
        batch = super().handle(event)
        self.sends += [effect for effect in batch.effects if isinstance(effect, Send)]
        self.commits += [[type(record) for record in batch.records]] if batch.records else []
        return batch

    def forget(self) -> None:
        """Forget what was sent and recorded so far."""
        self.sends.clear()
        self.commits.clear()

    def running(self) -> Job:
        """Start the workers, and forget what that has cost."""
        self.play(f"running {' '.join(self.nodes)}")
        self.forget()
        return self

    def form_again(self) -> None:
        """Lose the first node; the others end their workers, and start them again."""
        self.nodes = self.nodes[1:]
        others = " ".join(self.nodes)
        self.play("drop n1", f"advance {self.coordinator.policy.reconnect_grace_s}s", f"stopped {others}")
        self.play(f"running {others}")

    @property
    def goals(self) -> dict[str, list[Goal]]:
        """What each node was sent."""
        names = {puppet.session: name for name, puppet in self.puppets.items()}
        sent: dict[str, list[Goal]] = {}
        for send in self.sends:
            sent.setdefault(names[send.session], []).append(send.message.goal)
        return sent


def test_a_round_is_one_message_each_way_for_every_node_and_two_commits() -> None:
    job = Job(SIZE)
    assert job.goals == {node: [Goal.RUN] for node in job.nodes}
    assert job.commits[-1][-1] is RoundFormed
    job.forget()
    job.play(f"running {' '.join(job.nodes)}")
    assert (job.goals, job.commits) == ({}, [[RoundStarted]])


def test_to_form_again_is_two_messages_each_way_for_every_node_that_is_left() -> None:
    job = Job(SIZE).running()
    job.form_again()
    assert job.goals == {node: [Goal.STOP, Goal.RUN] for node in job.nodes}
    stop, again, start = job.commits
    assert stop[0] is RoundStopped
    assert (again, start) == ([RoundEnded, RoundFormed], [RoundStarted])


def test_what_each_node_is_sent_of_a_round_does_not_grow_with_their_number() -> None:
    lengths = []
    for size in SIZES:
        job = Job(size).running()
        job.form_again()
        lengths.append(max(len(encode(send.message)) for send in job.sends))
    assert max(lengths) < 600
    assert abs(lengths[0] - lengths[1]) <= 40, "names are counted beyond eight, numbers have a digit more"


LOOKS = (
    (table, "next_row"),
    (Roll, "place"),
    (Member, "state_in"),
    (observations, "record_report"),
    (desired_state, "Desired"),
)
"""What looks at the rows of the table or at a member, takes in all of a report, or makes an answer."""


def count_calls(patch: pytest.MonkeyPatch, *places: tuple[object, str]) -> Counter[str]:
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


def test_a_heartbeat_touches_one_member_and_looks_at_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(SIZE).running()
    job.report("n2", beat=True)
    job.forget()
    looked = count_calls(monkeypatch, *LOOKS)
    job.now += 1.0
    members = job.run.members.values()
    heard, sent = {member.node: member.lease.heard_at for member in members}, job.desired("n2")
    job.report("n2", beat=True)
    touched = [member.node for member in members if member.lease.heard_at != heard[member.node]]
    assert (touched, len(job.sends), job.commits, dict(looked)) == (["n2"], 1, [], {})
    assert job.sends[0].message is sent, "the very same message, so that it is not encoded again"


def test_a_first_step_is_recorded_and_the_next_ones_cost_what_a_heartbeat_does(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(SIZE).running()
    for node in ("n2", "n3"):
        job.report(node, beat=True, steps=(0,))
    assert job.commits == [[TrainingBegan]]
    looked = count_calls(monkeypatch, *LOOKS[:-1])
    for step, node in enumerate(("n2", "n3", "n4"), 1):
        job.report(node, beat=True, steps=(step,))
    assert dict(looked) == {}


def test_a_report_looks_once_at_the_rows_and_moves_one_member(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(SIZE)
    looked = count_calls(monkeypatch, (table, "next_row"), (Roll, "place"))
    job.play("running n2")
    assert dict(looked) == {"next_row": 1, "place": 1}


def test_a_tick_at_rest_looks_at_no_member(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(SIZE).running()
    looked = count_calls(monkeypatch, *LOOKS)
    job.now += job.coordinator.policy.heartbeat_s
    job.handle(Tick())
    assert dict(looked) == {}


def test_a_node_that_joins_has_only_its_own_host_looked_up() -> None:
    job = Job(SIZE)
    looked_up: list[str] = []

    class Hosts(dict[str, JudgedHost]):
        def get(self, host: str, default: Any = None) -> Any:
            looked_up.append(host)
            return super().get(host, default)

    job.coordinator.cluster.durable.hosts = Hosts()
    job.play(f"join late {job.spec}")
    assert looked_up == ["host-late"]


def test_what_nodes_sent_during_a_sleep_moves_the_deadlines_of_all_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = play("join n1 n2 n3 min=2 max=100")
    moves = count_calls(monkeypatch, (Run, "postpone"))
    for number, node in enumerate(stage.puppets, 1):  # the loop reads all of them before its timers
        stage.now = 60.0 + number / 1_000
        stage.report(node, beat=True)
    assert dict(moves) == {"postpone": 1}


def test_to_show_a_job_counts_its_round_once_and_not_for_each_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    for spares in (1, 8):
        stage = play(f"join n1 {' '.join(f's{number}' for number in range(spares))} min=1 max=1")
        with monkeypatch.context() as patch:
            looked = count_calls(patch, (Roll, "count"))
            shown = stage.view()
        assert shown.spares == spares
        assert [node.state for node in shown.nodes] == ["assigned", *["spare"] * spares]
        counts.append(looked["count"])
    assert counts[0] == counts[1]


def test_an_answer_that_is_repeated_is_the_one_that_would_be_made() -> None:
    stage = play("join n1 n2 n3 min=3 max=3", "running n1 n2 n3")
    for late_s in (0.0, 2.5, 0.0):
        stage.now += 1.0 + late_s
        for member in stage.run.members.values():
            stage.report(member.node, beat=True)
            assert member.session.sent == desired_state.desired(stage.run, member, 1.0, stage.now)
