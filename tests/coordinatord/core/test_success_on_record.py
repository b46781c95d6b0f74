"""That all workers of a node have succeeded is on record: the node may go before the others have."""

import pytest

from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.values.records import NodeLost, RoundStopped
from tests.support.script import Stage, play

TWO = """
    join n1 n2 min=1 max=2
    advance 1s
    running n1 n2
    advance 20s
    succeed n1
"""


def lost(stage: Stage) -> list[str]:
    """Return the nodes that were lost."""
    return [record.node for record in stage.records(NodeLost)]


def stops(stage: Stage) -> list[str]:
    """Return the conditions under which rounds were stopped."""
    return [record.condition for record in stage.records(RoundStopped)]


@pytest.mark.parametrize("went", ["drop n1\nask stop default\nadvance 2s", "drop n1\nadvance 2s\nask stop default"])
def test_a_job_is_done_though_a_node_that_had_succeeded_is_lost_while_the_round_is_stopped(went: str) -> None:
    stage = play(TWO, went, "succeed n2")
    assert lost(stage) == ["n1"]
    assert stage.state() is State.SUCCEEDED


def test_a_coordinator_that_starts_again_meanwhile_knows_that_node_as_well() -> None:
    stage = play(TWO, "drop n1", "ask stop default", "advance 2s", "die 1s", "reconnect n2", "succeed n2")
    assert lost(stage) == ["n1"]
    assert stage.state() is State.SUCCEEDED


def test_a_round_starts_though_a_node_that_has_succeeded_was_started_again_before() -> None:
    stage = play(
        "join n1 n2 min=2 max=2\nrunning n1\nsucceed n1\njoin n1 min=2 max=2 incarnation=2",
        "running n2",
    )
    assert stops(stage) == []
    assert stage.state() is State.RUNNING


def test_the_loss_of_a_node_that_had_succeeded_explains_no_failure_of_another() -> None:
    stage = play(TWO, "join n1 min=1 max=2 incarnation=2", "advance 10s", "fail n2", "failed n2")
    assert stops(stage) == ["worker_failed"]
    assert stage.run.durable.restarts_used == 1
    assert stage.run.durable.ledger.settled.detecting < 1.0
