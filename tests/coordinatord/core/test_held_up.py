"""What is in the way of the end of a round on a node is said as the reason of its state, and charged to nobody."""

from msgspec import structs

from tests.support.ledgers import PAIR, play, run_of, shown

IN_USE = "memory of GPUs is in use: 2.0 GiB of nvidia0 by process 7 of ann"


def test_a_node_whose_round_cannot_end_yet_says_why_as_soon_as_that_changes() -> None:
    stage = play(PAIR, "fail n1", "stopped n1", "stopping n2")
    puppet = stage.puppets["n2"]
    for held_up, reason in ((IN_USE, f"its workers are ending: {IN_USE}"), ("", "its workers are ending")):
        puppet.observed = structs.replace(puppet.observed, held_up=held_up)
        stage.play("stopping n2")
        assert {node.node: node.reason for node in shown(stage).nodes}["n2"] == reason
    stage.play("stopped n2")
    assert run_of(stage).durable.round == 2
    assert run_of(stage).durable.restarts_used == 1, "the failure's own"
