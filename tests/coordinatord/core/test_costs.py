"""What things cost, in messages, records, commits, looks and calls, counted exactly: never in time.

A cost that grows with the number of nodes where it should not, or a message more for each node, shows here.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from msgspec.structs import replace

from coordinatord.core.keeping.known import kept_of
from coordinatord.core.rounds.effects import Batch, Send
from coordinatord.core.rounds.events import Event, Reported, Tick
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
from coordinatord.protocol.kept_state import Holding, PersistReport
from coordinatord.protocol.messages import CheckResult, Goal, HealthCheck, Observed, Section
from coordinatord.protocol.news import Mark, marked
from tests.support.running_job import running_job
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


MANY = (8, 32, 128)

SLACK = 12
"""The calls that chance may add: a dict or a heap of another size, and the lines of a text that name some nodes."""

for kind in (Observed, HealthCheck, Holding, PersistReport):
    marked(kind, Mark.QUIET)  # found out at the first use of a class, whatever the number of nodes


def names(size: int) -> list[str]:
    """Return the names of so many nodes."""
    return [f"n{number}" for number in range(1, size + 1)]


def leaving(size: int, *, stays: bool = False) -> Stage:
    """Have nodes leave, of which each has another shard, while their last step is written; `stays` if one does not."""
    nodes = names(size)
    stage, all_nodes = running_job(nodes, f"min={size} max={size} keeps=600s"), " ".join(nodes)
    stage.play(f"step {nodes[0]} 10", f"keep {all_nodes} 1:10 shards={size} halts=yes", "advance 1s")
    stage.play(f"leave {' '.join(nodes[:-1] if stays else nodes)}", f"keep {all_nodes} 1:11 shards={size} halts=11")
    stage.play("advance 1s", f"stopped {all_nodes}")
    assert stage.desired("n1").persist is not None
    assert stage.run.members["n1"].hands_over
    return stage


def written(size: int) -> Stage:
    """Have all nodes write a step while their round goes on; each has reported that it writes."""
    nodes = names(size)
    stage, all_nodes = running_job(nodes, f"min={size} max={size} keeps=60s"), " ".join(nodes)
    stage.play(f"step {nodes[0]} 10", f"keep {all_nodes} 1:10 shards={size} protected=yes", "advance 62s")
    assert stage.desired("n1").persist is not None
    stage.play(f"write {all_nodes} writing")
    return stage


def blocked(size: int) -> Stage:
    """Have nodes wait for a round because one of them does not find a step on the disk."""
    nodes = names(size)
    stage = play(f"join {' '.join(nodes)} min={size} max={size + 1} keeps=600s phase=preparing")
    for node in nodes[1:]:
        stage.play(f"write {node} found=e-0:1:100 of={size}")
    stage.play(f"prepared {' '.join(nodes)}")
    assert "and mounted?" in stage.desired("n1").reason or "does not" in stage.run.keeping.obstacle
    return stage


def evaluating(size: int) -> Stage:
    """Have all workers be in a section, of which that of the first node ends last."""
    nodes = names(size)
    stage = running_job(nodes, f"min={size} max={size}")
    for node in nodes:
        stage.play(f"step {node} 3")
    for node in reversed(nodes):
        stage.play(f"section {node} eval limit=600s", "advance 0.01s")
    return stage


@pytest.mark.parametrize("staged", [leaving, written, blocked, evaluating])
def test_a_heartbeat_costs_the_same_with_many_nodes(staged: Callable[[int], Stage]) -> None:
    costs = [cost_of_heartbeat(staged(size)) for size in MANY]
    assert max(costs) <= min(costs) + SLACK, costs


@pytest.mark.parametrize("staged", [leaving, written])
def test_progress_of_a_write_costs_what_a_heartbeat_does(staged: Callable[[int], Stage]) -> None:
    costs = []
    for size in MANY:
        stage = staged(size)
        stage.play("write n1 writing")
        kept = stage.puppets["n1"].observed.kept
        assert kept is not None
        assert kept.persisting is not None
        more = replace(kept, persisting=replace(kept.persisting, bytes=5_000))
        stage.now += 1.0
        costs.append(cost_of_heartbeat(stage, kept=more))
        attempt = kept_of(stage.run).disk.attempt
        assert attempt is not None
        assert attempt.progressed_at == stage.now
    assert max(costs) <= min(costs) + SLACK, costs


def test_when_the_last_section_to_end_ends_earlier_the_next_one_is_found_without_a_search() -> None:
    costs = []
    for size in MANY:
        stage = evaluating(size)
        sections = stage.run.progress.sections
        assert sections.longest is not None
        until = sections.longest.ends_at
        costs.append(cost_of_heartbeat(stage, section=Section("eval", 600.0, 60.0, 0)))
        assert until - 1.0 < sections.longest.ends_at < until
    assert max(costs) <= min(costs) + SLACK, costs


@pytest.mark.parametrize("stays", [False, True])
def test_news_of_a_node_that_hands_over_looks_at_each_node_a_few_times(stays: bool) -> None:
    costs = []
    for size in MANY:
        stage = leaving(size, stays=stays)
        kept = stage.puppets["n1"].observed.kept
        assert kept is not None
        costs.append(cost_of_heartbeat(stage, kept=replace(kept, used_bytes=1)) / size)
    assert costs[-1] <= 1.5 * costs[0], costs


def test_a_health_check_that_fails_costs_the_same_on_many_hosts() -> None:
    first, last = [], []
    for size in MANY:
        nodes, bad = names(size), HealthCheck(1, CheckResult.BAD, "no driver")
        stage = running_job(nodes, f"min={size} max={size}")
        first.append(cost_of_heartbeat(stage, check=bad))
        assert stage.coordinator.cluster.durable.why_quarantined("host-n1")
        for node in nodes[1:]:
            stage.report(node, check=bad)
        last.append(cost_of_heartbeat(stage, check=replace(bad, result=CheckResult.GOOD)))
        assert not stage.coordinator.cluster.durable.why_quarantined("host-n1")
    assert max(first) <= min(first) + SLACK, first
    assert max(last) <= min(last) + SLACK, last


def cost_of_heartbeat(stage: Stage, **changes: Any) -> int:
    """Return how many Python functions the coordinator calls for a heartbeat of the first node with these changes."""
    puppet, calls = stage.puppets["n1"], 0
    section, steps = puppet.observed.section, puppet.observed.steps
    aged = {
        "section": None if section is None else replace(section, age_s=stage.now - puppet.section_at),
        "step_age_s": stage.now - puppet.stepped_at if steps else None,
    }
    observed = replace(puppet.observed, **{"beat": True} | aged | changes)

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    gc.disable()  # what it would finalize for other tests is no cost of this heartbeat
    sys.setprofile(count)
    try:
        stage.coordinator.handle(Reported(puppet.session, observed), stage.now)
    finally:
        sys.setprofile(before)
        gc.enable()
    return calls
