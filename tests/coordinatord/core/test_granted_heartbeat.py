"""Nodes of other jobs stretch the heartbeat, and a small job is judged by the one that its nodes were granted."""

from coordinatord.core.rounds.values.records import NodeLost
from tests.support.script import Stage, play

CROWD = """
    join n4 n5 n6 n7 n8 n9 n10 job=other min=7 max=7
    join n1 n2 n3 min=2 max=3 heard_s=2.5
    running n1 n2 n3
    advance 21s
"""
"""A job of three nodes that were granted 2.5 s, since there are ten nodes of two jobs. Each says that it heard the
coordinator 2.5 s ago."""


def crowd() -> Stage:
    """Return the stage; its coordinator takes four heartbeats a second."""
    return play(CROWD, heartbeats_per_s_max=4)


def losses(stage: Stage) -> list[tuple[str, float]]:
    """Return who was lost, and after how long a silence."""
    return [(record.node, record.silent_s) for record in stage.records(NodeLost)]


def test_a_node_whose_peers_beat_as_granted_is_lost_at_once_when_their_errors_prove_it() -> None:
    stage = crowd()
    stage.play("drop n3", "fail n1 of=peer", "stopped n2", "failed n1")
    assert losses(stage) == [("n3", 0.0)]


def test_no_node_is_late_as_it_was_not_told_yet_that_others_have_left() -> None:
    stage = crowd()
    stage.play("drop n4 n5 n6 n7 n8 n9 n10 job=other", "advance 2.5s")
    for node in ("n1", "n2", "n3"):
        assert stage.desired(node).heartbeat_s == 1.0
        stage.report(node, heard_s=0.0)
    stage.play("drop n3", "fail n1 of=peer", "stopped n2", "failed n1")
    assert losses(stage) == [("n3", 0.0)]


def test_a_silent_node_is_lost_at_the_end_of_its_lease_when_others_beat_as_granted() -> None:
    stage = crowd()
    stage.play("advance 2.4s", "heal n3", "silence n3", "advance 12.5s")
    assert losses(stage) == [("n3", 12.5)]


def test_two_looks_at_stalled_workers_are_a_granted_heartbeat_apart() -> None:
    stage = crowd()
    stage.play("step n1 n2 n3 1", "advance 2.5s", "step n1 n2 n3 2", "advance 60s", "seen waits waits stands")
    assert not any("looks at" in text for text in stage.play("advance 2.4s"))
    assert any("looks at" in text for text in stage.play("advance 0.1s"))
