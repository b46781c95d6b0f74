"""While nothing can be recorded, nothing is decided; what was known stands, and nobody is condemned for it."""

import pytest

from coordinatord.core.rounds.effects import Batch, Refuse, ReportDegraded
from coordinatord.core.rounds.events import Connected, Disconnected, Event, Reported, StoreFailed, StoreRecovered, Tick
from coordinatord.core.rounds.state.durable import State
from coordinatord.protocol.messages import Goal, Phase, RefusalCode
from tests.support.builders import a_failure, a_join, a_spec, an_observed
from tests.support.script import Stage, play

TROUBLE = StoreFailed("the disk is full")


def in_trouble(*lines: str) -> Stage:
    """Let a pair run, and play these lines since the store fails, after 1 s."""
    stage = play("join n1 n2 min=2 max=2", "running n1 n2", "advance 1s")
    assert stage.handle(TROUBLE) == Batch((), (), at_once=True)
    stage.play(*lines)
    return stage


def connect(stage: Stage, node: str, **join: object) -> Batch:
    return stage.coordinator.handle(Connected(9, a_join(node, **join), "10.0.0.9", "10.0.0.254"), stage.now)


def beat(phase: Phase = Phase.RUNNING, **values: object) -> Reported:
    return Reported(1, an_observed(run="e-1", round=1, phase=phase, beat=True, **values))


@pytest.mark.parametrize(
    "event",
    [beat(Phase.FAILED, failure=a_failure()), beat(Phase.SUCCEEDED), beat(leaving=True), Disconnected(1), Tick()],
    ids=["a worker failed", "a node succeeded", "a node wants to leave", "a connection closed", "time passed"],
)
def test_whatever_happens_nothing_is_decided(event: Event) -> None:
    stage = in_trouble("advance 100s")
    batch = stage.handle(event)
    assert batch.records == ()
    assert batch.at_once
    assert all(isinstance(effect, ReportDegraded) for effect in batch.effects)
    assert stage.state() is State.RUNNING
    assert stage.coordinator.next_deadline() is None


def test_a_node_that_is_known_may_come_back_and_others_are_turned_away_for_now() -> None:
    stage = in_trouble()
    [_, held] = connect(stage, "n1", spec=a_spec(2, 2), observed=beat().observed).effects
    assert isinstance(held, ReportDegraded)
    for join in ({"node": "n3"}, {"node": "n2", "incarnation": 2}, {"node": "n4", "job": "other"}):
        [refuse] = connect(stage, spec=a_spec(2, 2), **join).effects
        assert isinstance(refuse, Refuse)
        assert (refuse.message.code, refuse.message.retry) == (RefusalCode.DEGRADED, True)
    assert list(stage.coordinator.jobs) == ["default"]


def test_what_had_to_wait_is_decided_once_records_can_be_kept_again() -> None:
    stage = in_trouble("fail n1", "advance 48s")
    stage.handle(StoreRecovered())
    assert [stage.desired(node).goal for node in ("n1", "n2")] == [Goal.STOP] * 2
    assert stage.state() is State.STOPPING


def test_nodes_that_succeeded_meanwhile_have_succeeded() -> None:
    stage = in_trouble("succeed n1 n2", "advance 48s")
    stage.handle(StoreRecovered())
    assert stage.state() is State.SUCCEEDED


def test_the_time_of_trouble_counts_against_nobody() -> None:
    stage = in_trouble("silence n1 n2", "advance 999s")
    before = len(stage.past)
    stage.handle(StoreRecovered())
    stage.play("advance 4.5s")
    assert stage.past[before:] == []
    stage.play("heal n1", "advance 0.6s")
    assert stage.run.durable.reason == "lost node n2", "it stays silent"


@pytest.mark.parametrize("died_s", [4, 300, 598])
@pytest.mark.parametrize(("how", "has_s"), [("silence", 4.9), ("drop", 0.9)], ids=["cable cut", "connection closed"])
def test_a_node_that_goes_meanwhile_has_its_whole_time_after_the_trouble(died_s: int, how: str, has_s: float) -> None:
    stage = in_trouble(f"advance {died_s}s", f"{how} n2", f"advance {600 - died_s}s")
    before = len(stage.past)
    stage.handle(StoreRecovered())
    stage.play(f"advance {has_s}s")
    assert stage.past[before:] == []
    stage.play("advance 10.2s" if how == "silence" else "advance 0.2s")  # the longest lease, if it was late before
    assert stage.run.durable.reason == "lost node n2"


def test_a_node_that_begins_to_wait_meanwhile_waits_for_its_whole_time_and_no_longer() -> None:
    stage = play("join n1 min=2 max=2", "advance 0.5s", "drop n1", "advance 0.1s", "reconnect n1", "advance 0.4s")
    stage.handle(TROUBLE)
    stage.report("n1", phase=Phase.STARTING, run="e-1", round=1)
    run = stage.run
    run.gathering.join_timeouts.discard("n1")
    stage.play("advance 499s")
    stage.report("n1", phase=Phase.IDLE, run="e-1", round=1)
    stage.play("advance 501s")
    stage.handle(StoreRecovered())
    assert run.gathering.join_timeouts.get("n1") == stage.now + 60
    assert run.members["n1"].lease.awaited_from <= stage.now


def test_a_deserted_job_is_not_given_up_for_a_node_with_other_settings_that_cannot_be_taken_in() -> None:
    stage = play("join n1 n2 min=2 max=2", "advance 1s", "drop n1 n2", "advance 9s")
    assert stage.run.roll.deserted
    stage.handle(TROUBLE)
    [refused] = stage.play("join n1 min=1 max=1")
    assert "refused may retry (degraded)" in refused
    stage.play("join n1 n2 min=2 max=2")
    stage.handle(StoreRecovered())
    assert (stage.state(), stage.run.id) == (State.STARTING, "e-1")
