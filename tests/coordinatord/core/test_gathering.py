"""Nodes gather for the next round: some prepare, some arrive while a round goes on, and some wait for a checkpoint."""

from functools import partial

import pytest

from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.values.records import NodeReleased, Record, RoundFormed, RoundStopped
from coordinatord.protocol.messages import Goal, Result
from tests.support.ledgers import ledger
from tests.support.script import Stage, play

SPEC = "min=2 max=4"


settling = partial(play, settle_s=2.0, settle_max_s=10.0)


def running(*names: str) -> str:
    """Return the script of a job of these nodes that runs."""
    return f"join {' '.join(names)} {SPEC}\nadvance 2s\nrunning {' '.join(names)}"


def formed(stage: Stage) -> list[tuple[float, list[str]]]:
    """Return when each round was formed, and of which nodes."""
    return [
        (at, [ranks.node for ranks in record.nodes]) for at, record in stage.past if isinstance(record, RoundFormed)
    ]


def of_kind(stage: Stage, kind: type[Record]) -> list[float]:
    return [at for at, record in stage.past if isinstance(record, kind)]


def test_while_nodes_that_are_enough_prepare_the_run_starts_and_waits_for_no_node() -> None:
    stage = settling(f"join n1 {SPEC} phase=preparing\nadvance 3s\njoin n2 {SPEC} phase=preparing\nadvance 60s")
    assert ledger(stage) == {"waiting": 3.0, "starting": 60.0}
    stage.play("prepared n1", "advance 4s", "prepared n2", "advance 1s")
    assert formed(stage) == [(67.0, ["n1", "n2"])]
    assert ledger(stage) == {"waiting": 3.0, "starting": 65.0}, "the round's own start included"


def test_nodes_that_have_gone_before_they_were_prepared_were_waited_for() -> None:
    stage = settling(f"join n1 {SPEC} phase=preparing\njoin n2 {SPEC}\nadvance 60s\nleave n2\nadvance 1s")
    assert ledger(stage) == {"waiting": 61.0}


def test_enough_nodes_wait_for_one_that_prepares_as_if_it_had_just_arrived() -> None:
    script = f"join n1 n2 n3 {SPEC} phase=preparing\nadvance 9s"
    stage = settling(f"{script}\nprepared n1\nprepared n2\nadvance 1s\nprepared n3")
    assert formed(stage) == [(10.0, ["n1", "n2", "n3"])]
    late = settling(f"{script}\nprepared n1\nprepared n2\nadvance 5s")
    assert formed(late) == [(11.0, ["n1", "n2"])]
    assert late.play("prepared n3")[0].endswith("RoundStopped e-1 round 1, planned: node n3 arrived")


def test_nodes_that_become_ready_one_after_the_other_cannot_hold_a_round_up_for_ever() -> None:
    names = [f"n{number}" for number in range(1, 9)]
    stage = Stage(settle_s=2.0, settle_max_s=5.0)
    stage.play(f"join {' '.join(names)} min=2 max=8 phase=preparing")
    for name in names:
        stage.play("advance 1s", f"prepared {name}")
    assert formed(stage)[0] == (7.0, names[:6]), "5 s after the second node, the last that was needed"


def test_survivors_do_not_wait_for_a_node_that_prepares() -> None:
    stage = settling(f"{running('n1', 'n2', 'n3')}\njoin n4 {SPEC} phase=preparing\ndrop n3\nadvance 2s\nstopped n1 n2")
    assert formed(stage)[1:] == [(4.0, ["n1", "n2"])]


def test_survivors_that_are_too_few_wait_for_a_node_that_prepares() -> None:
    stage = settling(
        f"{running('n1', 'n2')}\njoin n3 {SPEC} phase=preparing\ndrop n2\nadvance 2s\nstopped n1\nadvance 20s"
    )
    reason = "2 joined, at least 2 needed; preparing: node n3"
    assert stage.view().reason == reason
    stage.play("prepared n3")
    assert formed(stage)[1:] == [(24.0, ["n1", "n3"])]


def test_newcomers_that_prepare_together_stop_a_running_round_once() -> None:
    script = f"{running('n1', 'n2')}\njoin n3 n4 {SPEC} phase=preparing\nadvance 8s"
    stage = settling(f"{script}\nprepared n3\nadvance 1s\nprepared n4\nstopped n1 n2")
    assert of_kind(stage, RoundStopped) == [11.0]
    assert formed(stage)[1:] == [(11.0, ["n1", "n2", "n3", "n4"])]


def test_a_node_that_prepared_long_ago_arrives_again_as_any_other() -> None:
    stage = settling(f"join n1 {SPEC} phase=preparing\njoin n2 {SPEC}\nadvance 5s\nprepared n1\nrunning n1 n2")
    stage.play("fail n2", "stopped n2", "advance 90s", "stopped n1")
    assert stage.run.gathering.arrived_last == stage.now, "it was left behind, and has come back"


def test_to_prepare_is_no_waiting_in_vain() -> None:
    stage = settling(f"join n1 {SPEC} phase=preparing join_timeout_s=5\nadvance 60s")
    assert of_kind(stage, NodeReleased) == []
    stage.play("prepared n1", "advance 6s")
    assert of_kind(stage, NodeReleased) == [65.0], "it waits for others from when it is ready"


def test_a_node_waits_no_longer_than_it_wants_to_for_one_that_prepares() -> None:
    stage = settling(f"join n1 {SPEC} join_timeout_s=5\njoin n2 {SPEC} phase=preparing\nadvance 6s")
    outcome = stage.puppets["n1"].desired.outcome  # type: ignore[union-attr] # it has received something
    assert outcome is not None
    assert outcome.result is Result.TIMED_OUT
    assert "2 joined, at least 2 needed; preparing: node n2" in outcome.summary


@pytest.mark.parametrize("way", ["leave n1", "ask drain n1"])
def test_a_node_may_leave_while_it_prepares(way: str) -> None:
    stage = settling(f"join n1 {SPEC} phase=preparing\n{way}")
    desired = stage.desired("n1")
    assert desired.goal is Goal.EXIT


def test_a_drain_knows_that_a_node_which_prepares_is_left() -> None:
    stage = settling(f"{running('n1', 'n2')}\njoin n3 {SPEC} phase=preparing")
    stage.play("ask drain n1")
    answer = stage.play("ask drain n2")[-1]
    assert answer.endswith(
        "node n2 will leave job default; 1 of at least 2 nodes are left, so the job waits for others"
    )


def test_a_node_that_prepares_hears_how_the_job_ends() -> None:
    stage = settling(f"{running('n1', 'n2')}\njoin n3 {SPEC} phase=preparing\nsucceed n1 n2")
    desired = stage.desired("n3")
    assert (desired.goal, desired.outcome and desired.outcome.result) == (Goal.EXIT, Result.SUCCEEDED)


def test_how_long_a_node_has_prepared_does_not_begin_anew_with_its_session() -> None:
    stage = settling(f"join n1 {SPEC} phase=preparing\nadvance 5s\ndrop n1\nreconnect n1\nadvance 7s")
    (node,) = stage.view().nodes
    assert (node.state, node.reason) == ("preparing", "imports the modules of --preload, for 12 s so far")


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


# What a waiting node is sent


def wait_sent(stage: Stage, node: str) -> float | None:
    """Return how long the node is to wait."""
    desired = stage.desired(node)
    assert desired.goal is Goal.WAIT
    return desired.wait_s


def test_when_there_are_enough_the_wait_is_the_rest_of_the_settle_window() -> None:
    stage = play("join n1 min=1 max=3", settle_s=2.0, heartbeat_s=0.25)
    assert wait_sent(stage, "n1") == 2.0
    stage.play("advance 0.5s")
    assert wait_sent(stage, "n1") == 1.5
    stage.play("advance 0.5s", "join n2 min=1 max=3")
    assert wait_sent(stage, "n2") == 2.0
    stage.play("advance 0.25s")
    assert wait_sent(stage, "n1") == 1.75


def test_a_join_timeout_that_ends_within_the_settle_window_is_what_is_sent() -> None:
    assert wait_sent(play("join n1 min=1 max=3 join_timeout_s=0.5", settle_s=2.0), "n1") == 0.5
