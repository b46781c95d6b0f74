"""When the node of a laggard is drained, and when it is left where it is."""

from itertools import pairwise

import pytest

from coordinatord.core.rounds.effects import Answer
from coordinatord.core.rounds.events import AdminRequested
from coordinatord.core.rounds.state.durable import DurableCluster
from coordinatord.core.rounds.transitions import releases
from coordinatord.core.rounds.transitions.apply import apply
from coordinatord.core.rounds.values.admin_requests import UndrainNode
from coordinatord.core.rounds.values.records import REASON_MAX, NodeDrained, NodeUndrained
from coordinatord.core.shown.job_view import drained_view
from coordinatord.core.watching.arrivals import EVERY_S, ask_at
from coordinatord.core.watching.lateness_watch import AGREEING_MIN
from coordinatord.protocol.http.api import LateStatus
from tests.support.script import Stage

LATE = "arrived n2=0.3s"
"""The steps of these jobs take a second, so each takes 1.43 times as long."""


class Job(Stage):
    """Three nodes that train, of which a round needs two."""

    def __init__(self, settings: str = "min=2 max=3 laggards=1.3") -> None:
        super().__init__()
        self.play(f"join n1 n2 n3 {settings}", "advance 20s", "running n1 n2 n3")
        self.trains(1)
        self.trains(11)

    def trains(self, step: int) -> None:
        """Let the workers come to a step, a second for each."""
        self.play("advance 10s", f"step n1 n2 n3 {step}")

    @property
    def drained(self) -> list[str]:
        """Return the nodes that were drained."""
        return [record.node for record in self.records(NodeDrained)]


@pytest.mark.parametrize("between", ["arrived", "arrived n3=0.3s", "arrived n2=0.01s"])
def test_a_look_that_names_nobody_or_another_begins_the_count_anew(between: str) -> None:
    job = Job()
    job.play(LATE, LATE, between, LATE, LATE)
    assert job.drained == []
    job.play(LATE)
    assert job.drained == ["n2"]


@pytest.mark.parametrize(
    ("settings", "late"),
    [
        pytest.param("min=2 max=3", LATE, id="nobody has asked for it"),
        pytest.param("min=3 max=3 laggards=1.3", LATE, id="too few nodes would be left"),
        pytest.param("min=2 max=3 laggards=1.3", "arrived n2=0.2s", id="a step is 1.25 times as long"),
    ],
)
def test_a_laggard_stays(settings: str, late: str) -> None:
    job = Job(settings)
    job.play(*[late] * 10)
    assert job.drained == []


def test_one_node_is_drained_at_a_time() -> None:
    job = Job("min=1 max=3 laggards=1.3")
    job.play("ask drain n3", *[LATE] * 10)
    assert job.drained == ["n3"]


def test_nobody_is_drained_while_as_many_are_drained_as_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releases, "DRAINED_MAX", 0)
    job = Job()
    job.play(*[LATE] * 10)
    assert job.drained == []


def test_a_look_that_comes_back_after_its_round_is_worth_nothing() -> None:
    job = Job()
    job.play(*[LATE] * (AGREEING_MIN - 1), "ask restart default", LATE)
    assert job.drained == []


def test_a_node_with_the_same_id_in_another_job_stays_there() -> None:
    job = Job()
    job.play("join n2 job=other min=1 max=1", "running n2 job=other", *[LATE] * AGREEING_MIN)
    assert job.drained == ["n2"]
    job.play("join n2 job=third min=1 max=1")
    assert "third" in job.coordinator.jobs
    [other] = job.coordinator.jobs["other"].members.values()
    assert not other.leaves
    job.play("ask drain n2")
    assert other.leaves


def test_two_jobs_that_drain_nodes_of_one_id_do_without_both_and_an_operator_takes_both_back() -> None:
    cluster = DurableCluster()
    for job in ("a", "b"):
        apply(cluster, NodeDrained("", "", f"late in {job}", "n1", job), 0.0)
    drains = [cluster.why_drained(job, "n1", "h1") for job in ("a", "b", "c")]
    assert drains == [("n1", "late in a"), ("n1", "late in b"), None]
    assert [(each.node, each.reason) for each in drained_view(cluster)] == [("n1", "late in a; late in b")]
    apply(cluster, NodeUndrained("", "", "back", "n1"), 0.0)
    assert cluster.why_drained("a", "n1", "h1") is None


@pytest.mark.parametrize("operator", [True, False])
def test_an_undrain_says_which_jobs_let_in_a_node_again_that_they_had_drained_themselves(*, operator: bool) -> None:
    job = Job()
    job.play(*[LATE] * AGREEING_MIN, *(["ask drain n2"] if operator else []))
    [why] = [record.reason for record in job.records(NodeDrained) if record.only_job]
    for dry_run in (True, False):
        batch = job.handle(AdminRequested(-1, UndrainNode("n2", "alice", "", dry_run=dry_run)))
        [text] = [effect.text for effect in batch.effects if isinstance(effect, Answer)]
        assert text.endswith(f"n2 is no longer drained, and stays; taken back as well: {why}")


def test_a_node_that_many_jobs_drained_has_as_many_reasons_as_an_answer_may_have() -> None:
    cluster = DurableCluster()
    for job in range(40):
        apply(
            cluster, NodeDrained("", "", f"late in job {job}: {'last in most collectives ' * 8}", "n1", f"{job}"), 0.0
        )
    [shown] = drained_view(cluster)
    assert len(shown.reason) == REASON_MAX
    assert shown.reason.startswith("late in job 0")


def test_a_late_node_with_the_name_of_its_host_takes_no_other_node_of_the_host_along() -> None:
    cluster = DurableCluster()
    apply(cluster, NodeDrained("", "", "late", "h1", "a"), 0.0)
    assert [cluster.why_drained("a", node, "h1") for node in ("h1", "n2")] == [("h1", "late"), None]
    apply(cluster, NodeDrained("", "", "drained by an operator", "h1"), 0.0)
    assert cluster.why_drained("a", "n2", "h1") == ("h1", "drained by an operator")


def test_looks_come_soon_until_somebody_is_named() -> None:
    job = Job("min=2 max=3")
    run = job.run
    assert (step_s := run.progress.pace.usual_s) is not None
    assert (since := run.progress.first_at) is not None
    asked: list[float] = []
    while len(asked) < 5:
        asked.append(ask_at(run, job.now, asked[-1] if asked else None))
    assert [round((at - since) / step_s) for at in asked[:3]] == [20, 30, 45]
    pauses = [after - at for at, after in pairwise(asked)]
    assert pauses == sorted(pauses)
    assert max(pauses) <= EVERY_S
    job.play(LATE)
    assert ask_at(run, job.now, asked[0]) == asked[0] + EVERY_S, "it is named, and the next look can wait"


def test_a_worker_that_comes_before_the_others_is_shown_as_late_by_nothing() -> None:
    job = Job("min=2 max=3")
    job.play("arrived n1=0.2s n3=0.3s")
    late = {node.node: node.late for node in job.view().nodes}
    assert late["n2"] == LateStatus(rank=1, last=0.0, late_s=0.0)
    assert late["n3"] == LateStatus(rank=2, last=1.0, late_s=0.1)
