"""All workers keep one and the same step before a planned end: the furthest that any of them cannot avoid."""

import pytest

from coordinatord.protocol.kept_state import Halt
from coordinatord.protocol.messages import Desired, Goal
from tests.support.script import Stage, play

NODES = ("n1", "n2", "n3")


def train(able: str = "yes", *, stepped: bool = True) -> Stage:
    """Let three nodes train; the workers of the last one may not be `able` to stand still."""
    stage = play("join n1 n2 n3 min=2 max=4 keeps=yes", "advance 11s", f"running {' '.join(NODES)}")
    for node, halts in zip(NODES, ("yes", "yes", able), strict=True):
        stage.play(f"keep {node}{f' halts={halts}' if halts else ''}")
    stage.play("step n1 11" if stepped else "advance 1s", "advance 1s")
    return stage


def wanted(stage: Stage, node: str = "n1") -> Desired:
    return stage.desired(node)


def promise(stage: Stage, node: str, step: int) -> None:
    stage.play(f"keep {node} halts={step}", f"stopping {node}")


def halts(stage: Stage) -> list[Halt | None]:
    return [wanted(stage, node).halt for node in NODES]


@pytest.mark.parametrize(
    "change", ["leave n2", "ask drain n2", "ask restart default", "ask stop default", "join n4 max=4 min=2"]
)
def test_the_furthest_step_is_named_when_all_have_said_how_far_they_go(change: str) -> None:
    stage = train()
    stage.play(change, "advance 11s")
    assert wanted(stage).goal is Goal.STOP
    assert halts(stage) == [Halt(None)] * 3
    promise(stage, "n1", 12)
    promise(stage, "n2", 13)
    assert halts(stage) == [Halt(None)] * 3
    promise(stage, "n3", 12)
    assert halts(stage) == [Halt(13)] * 3
    assert "all workers end after step 13" in "\n".join(stage.play("status"))


def test_a_coordinator_that_was_started_again_names_the_same_step() -> None:
    stage = train()
    stage.play("leave n2")
    for node, step in zip(NODES, (12, 13, 12), strict=True):
        promise(stage, node, step)
    stage.play("keep n1 halts=13")  # the only one that has heard of it
    stage.play("die 1s", "reconnect n1 n3")
    assert wanted(stage).halt == Halt(None)
    stage.play("reconnect n2")
    assert halts(stage) == [Halt(13)] * 3


@pytest.mark.parametrize("change", ["leave n1", "ask drain n1", "ask restart default", "ask stop default"])
def test_a_coordinator_that_was_started_again_waits_for_the_promises_of_nodes_that_it_has_not_heard(
    change: str,
) -> None:
    """All nodes get SIGTERM while there is no coordinator: the first one that is back is the first one to leave."""
    stage = train()
    stage.play("die 1s", "reconnect n1", "keep n1 halts=yes", change)
    assert (wanted(stage).goal, wanted(stage).halt) == (Goal.STOP, Halt(None))
    promise(stage, "n1", 12)
    stage.play("reconnect n2 n3")
    promise(stage, "n2", 13)
    promise(stage, "n3", 12)
    assert halts(stage) == [Halt(13)] * 3


def test_a_node_that_cannot_halt_is_not_waited_for_once_it_is_heard() -> None:
    stage = train(able="")
    stage.play("die 1s", "reconnect n1 n2", "keep n1 halts=yes", "leave n1")
    promise(stage, "n1", 12)
    assert wanted(stage).halt == Halt(None)
    stage.play("reconnect n3", "advance 1s")
    assert halts(stage) == [None] * 3


@pytest.mark.parametrize(("able", "stepped"), [("", True), ("yes", False)], ids=["a node cannot halt", "no step yet"])
def test_where_there_is_no_step_that_all_can_keep_each_keeps_what_it_has(able: str, *, stepped: bool) -> None:
    stage = train(able, stepped=stepped)
    stage.play("leave n2")
    assert wanted(stage).planned
    assert halts(stage) == [None] * 3


@pytest.mark.parametrize("breaks", ["fail n3", "drop n3"])
def test_nobody_waits_for_a_step_that_cannot_be_kept_any_more(breaks: str) -> None:
    stage = train()
    stage.play("leave n2")
    promise(stage, "n1", 12)
    assert halts(stage) == [Halt(None)] * 3
    stage.play(breaks, "advance 20s")
    assert halts(stage)[:2] == [None] * 2
