"""Nodes that prepare: they count as arrived, no round has them, and none waits for them longer than it helps.

`tests/golden/preparing.txt` shows what is usual; here are the corners.
"""

from functools import partial

import pytest

from coordinatord.core.rounds.values.records import NodeReleased, Record, RoundFormed, RoundStopped
from coordinatord.protocol.messages import Goal, Result
from tests.support import script
from tests.support.ledgers import ledger
from tests.support.script import Stage

SPEC = "min=2 max=4"


play = partial(script.play, settle_s=2.0, settle_max_s=10.0)


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
    stage = play(f"join n1 {SPEC} phase=preparing\nadvance 3s\njoin n2 {SPEC} phase=preparing\nadvance 60s")
    assert ledger(stage) == {"waiting": 3.0, "starting": 60.0}
    stage.play("prepared n1", "advance 4s", "prepared n2", "advance 1s")
    assert formed(stage) == [(67.0, ["n1", "n2"])]
    assert ledger(stage) == {"waiting": 3.0, "starting": 65.0}, "the round's own start included"


def test_nodes_that_have_gone_before_they_were_prepared_were_waited_for() -> None:
    stage = play(f"join n1 {SPEC} phase=preparing\njoin n2 {SPEC}\nadvance 60s\nleave n2\nadvance 1s")
    assert ledger(stage) == {"waiting": 61.0}


def test_enough_nodes_wait_for_one_that_prepares_as_if_it_had_just_arrived() -> None:
    script = f"join n1 n2 n3 {SPEC} phase=preparing\nadvance 9s"
    stage = play(f"{script}\nprepared n1\nprepared n2\nadvance 1s\nprepared n3")
    assert formed(stage) == [(10.0, ["n1", "n2", "n3"])]
    late = play(f"{script}\nprepared n1\nprepared n2\nadvance 5s")
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
    stage = play(f"{running('n1', 'n2', 'n3')}\njoin n4 {SPEC} phase=preparing\ndrop n3\nadvance 2s\nstopped n1 n2")
    assert formed(stage)[1:] == [(4.0, ["n1", "n2"])]


def test_survivors_that_are_too_few_wait_for_a_node_that_prepares() -> None:
    stage = play(f"{running('n1', 'n2')}\njoin n3 {SPEC} phase=preparing\ndrop n2\nadvance 2s\nstopped n1\nadvance 20s")
    reason = "2 joined, at least 2 needed; preparing: node n3"
    assert stage.view().reason == reason
    stage.play("prepared n3")
    assert formed(stage)[1:] == [(24.0, ["n1", "n3"])]


def test_newcomers_that_prepare_together_stop_a_running_round_once() -> None:
    script = f"{running('n1', 'n2')}\njoin n3 n4 {SPEC} phase=preparing\nadvance 8s"
    stage = play(f"{script}\nprepared n3\nadvance 1s\nprepared n4\nstopped n1 n2")
    assert of_kind(stage, RoundStopped) == [11.0]
    assert formed(stage)[1:] == [(11.0, ["n1", "n2", "n3", "n4"])]


def test_a_node_that_prepared_long_ago_arrives_again_as_any_other() -> None:
    stage = play(f"join n1 {SPEC} phase=preparing\njoin n2 {SPEC}\nadvance 5s\nprepared n1\nrunning n1 n2")
    stage.play("fail n2", "stopped n2", "advance 90s", "stopped n1")
    assert stage.run.gathering.arrived_last == stage.now, "it was left behind, and has come back"


def test_to_prepare_is_no_waiting_in_vain() -> None:
    stage = play(f"join n1 {SPEC} phase=preparing join_timeout_s=5\nadvance 60s")
    assert of_kind(stage, NodeReleased) == []
    stage.play("prepared n1", "advance 6s")
    assert of_kind(stage, NodeReleased) == [65.0], "it waits for others from when it is ready"


def test_a_node_waits_no_longer_than_it_wants_to_for_one_that_prepares() -> None:
    stage = play(f"join n1 {SPEC} join_timeout_s=5\njoin n2 {SPEC} phase=preparing\nadvance 6s")
    outcome = stage.puppets["n1"].desired.outcome  # type: ignore[union-attr] # it has received something
    assert outcome is not None
    assert outcome.result is Result.TIMED_OUT
    assert "2 joined, at least 2 needed; preparing: node n2" in outcome.summary


@pytest.mark.parametrize("way", ["leave n1", "ask drain n1"])
def test_a_node_may_leave_while_it_prepares(way: str) -> None:
    stage = play(f"join n1 {SPEC} phase=preparing\n{way}")
    desired = stage.desired("n1")
    assert desired.goal is Goal.EXIT


def test_a_drain_knows_that_a_node_which_prepares_is_left() -> None:
    stage = play(f"{running('n1', 'n2')}\njoin n3 {SPEC} phase=preparing")
    stage.play("ask drain n1")
    answer = stage.play("ask drain n2")[-1]
    assert answer.endswith(
        "node n2 will leave job default; 1 of at least 2 nodes are left, so the job waits for others"
    )


def test_a_node_that_prepares_hears_how_the_job_ends() -> None:
    stage = play(f"{running('n1', 'n2')}\njoin n3 {SPEC} phase=preparing\nsucceed n1 n2")
    desired = stage.desired("n3")
    assert (desired.goal, desired.outcome and desired.outcome.result) == (Goal.EXIT, Result.SUCCEEDED)


def test_how_long_a_node_has_prepared_does_not_begin_anew_with_its_session() -> None:
    stage = play(f"join n1 {SPEC} phase=preparing\nadvance 5s\ndrop n1\nreconnect n1\nadvance 7s")
    (node,) = stage.view().nodes
    assert (node.state, node.reason) == ("preparing", "imports the modules of --preload, for 12 s so far")
