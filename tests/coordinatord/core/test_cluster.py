"""Whether a coordinator takes itself for cut off: where nobody is heard, and nobody has said goodbye."""

import pytest

from coordinatord.core.own_end import is_cut_off
from tests.support.script import Stage, play

PAIR = ("join n1 n2 min=2 max=2", "running n1 n2")

SILENT = "advance 20s"
"""Longer than any lease."""


def cut_off(stage: Stage) -> bool:
    return is_cut_off(stage.coordinator.cluster)


def test_it_is_once_the_last_node_has_been_silent_for_its_lease() -> None:
    stage = play(*PAIR, "silence n1", "advance 1s", "silence n2", "advance 4.5s")
    assert [member.lease.expired for member in stage.run.members.values()] == [True, False]
    assert not cut_off(stage)
    stage.play(SILENT)
    assert cut_off(stage)
    stage.play("heal n1")
    assert not cut_off(stage)


@pytest.mark.parametrize(
    "lines", [(*PAIR, "drop n1 n2"), (*PAIR, "die 100s")], ids=["all connections closed", "nodes of before never came"]
)
def test_it_is_not_where_no_node_has_fallen_silent_in_a_connection(lines: tuple[str, ...]) -> None:
    stage = play(*lines)
    assert not cut_off(stage)
    stage.play(SILENT)
    assert stage.run.roll.all_silent
    assert not cut_off(stage)


def test_it_is_not_without_nodes_or_where_all_of_them_have_left() -> None:
    assert not cut_off(Stage())
    assert not cut_off(play(*PAIR, "ask stop default", "stopped n1 n2", "drop n1 n2", SILENT))
