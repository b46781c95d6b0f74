"""Nodes that arrive while a round goes on: they are gathered, and the job says whether they wait for a checkpoint."""

import pytest

from coordinatord.core.rounds.state.durable import State
from tests.support.script import Stage, play


def train(scale: str, *, keeps: str = "") -> Stage:
    """Let two nodes train in a round that has room for eight more."""
    stage = play(
        f"join n1 n2 min=2 max=10 scale={scale}{' keeps=yes' if keeps else ''}", "advance 11s", "running n1 n2"
    )
    for node in ("n1", "n2") if keeps else ():
        stage.play(f"keep {node} {keeps}")
    stage.play("step n1 11", "advance 1s")
    return stage


def arrive(stage: Stage, scale: str, *numbers: int) -> None:
    for number in numbers:
        stage.play(f"join n{number} min=2 max=10 scale={scale}")


def end_round(stage: Stage) -> None:
    stage.play("stopped n1 n2", "advance 0.1s")


def test_nodes_that_never_end_a_round_are_spares_until_it_ends_by_itself() -> None:
    stage = train("never")
    arrive(stage, "never", 3)
    stage.play("advance 60s")
    assert stage.state() is State.RUNNING
    assert stage.desired("n3").reason == "spare: round 1 does not end for nodes that arrive (--scale-up never)"
    stage.play("ask restart default")
    end_round(stage)
    assert stage.run.roll.round_size == 3, "the round had ended anyway"


def test_nodes_wait_for_the_next_checkpoint_that_all_nodes_have_written() -> None:
    stage = train("at-checkpoint", keeps="halts=yes written=10")
    arrive(stage, "at-checkpoint", 3, 4)
    stage.play("advance 60s")
    assert stage.state() is State.RUNNING, "the checkpoint of step 10 was written before they came"
    assert "until its next checkpoint" in stage.desired("n3").reason
    stage.play("keep n1 halts=yes written=20", "advance 1s")
    assert stage.state() is State.RUNNING, "one of two nodes has written its part"
    stage.play("keep n2 halts=yes written=20", "advance 1s")
    assert stage.state() is State.STOPPING
    end_round(stage)
    assert stage.run.roll.round_size == 4


def test_a_pardoned_node_waits_for_the_next_checkpoint_as_one_that_arrives() -> None:
    stage = train("at-checkpoint", keeps="halts=yes written=10")
    stage.play("join n3 job=other", "ask quarantine n3")
    arrive(stage, "at-checkpoint", 3)
    stage.play("advance 60s")
    assert stage.desired("n3").reason == "spare: its host is quarantined by alice"
    stage.play("ask pardon n3", "advance 1s")
    assert stage.state() is State.RUNNING, "the checkpoint of step 10 was written before it was pardoned"
    stage.play("keep n1 n2 halts=yes written=20", "advance 1s")
    assert stage.state() is State.STOPPING


def test_a_checkpoint_that_was_announced_is_waited_for() -> None:
    stage = train("at-checkpoint", keeps="halts=yes written=no")
    arrive(stage, "at-checkpoint", 3)
    stage.play("advance 60s")
    assert stage.state() is State.RUNNING


def test_nodes_wait_for_the_next_save_at_an_interval() -> None:
    stage = train("at-checkpoint", keeps="1:8 shards=2 halts=yes every=8")
    stage.play("keep n1 n2 1:8 shards=2 halts=yes every=8 protected=yes", "advance 1s")
    arrive(stage, "at-checkpoint", 3)
    stage.play("advance 60s")
    assert stage.state() is State.RUNNING
    stage.play("keep n1 n2 1:8 1:16 shards=2 halts=yes every=8 protected=yes", "advance 1s")
    assert stage.state() is State.STOPPING


def test_a_save_is_no_new_one_when_it_takes_the_place_of_an_older_one() -> None:
    stage = train("at-checkpoint", keeps="1:8 shards=2 halts=yes every=8 protected=yes")
    stage.play("keep n1 n2 1:8 1:16 shards=2 halts=yes every=8", "advance 1.5s")
    arrive(stage, "at-checkpoint", 3)
    stage.play("keep n1 n2 1:16 shards=2 halts=yes every=8 protected=yes", "advance 60s")
    assert stage.state() is State.RUNNING, "step 16 was saved before n3 came"


@pytest.mark.parametrize("last", ["halts=yes written=10", "1:8 shards=2 halts=yes every=8 protected=yes"])
def test_the_last_checkpoint_is_no_new_one_for_a_coordinator_that_was_started_again(last: str) -> None:
    stage = train("at-checkpoint", keeps=last)
    stage.play("advance 1s")
    arrive(stage, "at-checkpoint", 3)
    stage.play("die 1s", "reconnect n3 n1 n2", "advance 60s")
    assert stage.state() is State.RUNNING
    stage.play(f"keep n1 n2 {last.replace('=10', '=20').replace('1:8', '1:8 1:16')}", "advance 1s")
    assert stage.state() is State.STOPPING


def test_nobody_waits_where_workers_save_when_asked_and_at_no_other_time() -> None:
    stage = train("at-checkpoint", keeps="halts=yes")
    arrive(stage, "at-checkpoint", 3)
    stage.play("advance 3s")
    assert stage.state() is State.STOPPING


@pytest.mark.parametrize("change", ["leave n2", "ask restart default"])
def test_nodes_that_wait_for_a_checkpoint_take_part_when_the_round_ends_before(change: str) -> None:
    stage = train("at-checkpoint")
    arrive(stage, "at-checkpoint", 3)
    stage.play("advance 60s")
    assert stage.state() is State.RUNNING
    stage.play(change)
    end_round(stage)
    assert stage.run.durable.round == 2
    assert "n3" in stage.run.durable.order


def test_a_spare_that_was_left_out_of_the_last_round_takes_over_at_once() -> None:
    stage = play("join n1 n2 min=1 max=3", "advance 11s", "running n1 n2", "join n3 n4 min=1 max=3")
    end_round(stage)
    assert (stage.run.durable.round, stage.desired("n4").reason) == (2, "spare: round 2 has its maximum of nodes, 3")
    stage.play("running n1 n2 n3", "leave n1 n2", "stopped n1 n2 n3")
    assert (stage.state(), stage.run.durable.round) == (State.STARTING, 3), "it waits for no more nodes"
