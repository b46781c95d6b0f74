"""What is in the way of the end of a round on a node is said as the reason of its state, and charged to nobody."""

from coordinatord.protocol.messages import Phase
from tests.support.ledgers import PAIR
from tests.support.script import play

IN_USE = "memory of GPUs is in use: 2.0 GiB of nvidia0 by process 7 of ann"


def test_a_node_whose_round_cannot_end_yet_says_why_as_soon_as_that_changes() -> None:
    stage = play(PAIR, "fail n1", "stopped n1", "stopping n2")
    for held_up, reason in ((IN_USE, f"its workers are ending: {IN_USE}"), ("", "its workers are ending")):
        stage.report("n2", phase=Phase.STOPPING, held_up=held_up)
        assert {node.node: node.reason for node in stage.view().nodes}["n2"] == reason
    stage.play("stopped n2")
    assert stage.run.durable.round == 2
    assert stage.run.durable.restarts_used == 1, "the failure's own"
