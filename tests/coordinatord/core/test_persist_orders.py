"""What nodes are told to write to the disk, and who makes the step whole of what."""

from __future__ import annotations

from coordinatord.protocol.persisted_state import PersistOrder
from tests.support.script import Stage


def order(stage: Stage, node: str) -> PersistOrder | None:
    desired = stage.puppets[node].desired
    assert desired is not None
    return desired.persist


def test_who_makes_a_step_whole_knows_how_many_small_states_others_have_written() -> None:
    """Where all ranks have the same big state, one node writes it; a directory that is not shared shows by the rest."""
    stage = Stage()
    for node in ("n1", "n2"):
        stage.play(f"join {node} min=2 max=2 keeps=600s")
    stage.play("running n1 n2")
    for kept in ("1:100", "1:100 protected=yes"):
        stage.play(f"keep n1 {kept}")
        stage.play(f"keep n2 {kept}")
        stage.play("advance 1s")
    stage.play("advance 600s")
    both = order(stage, "n1"), order(stage, "n2")
    assert [one and sum(part.big for part in one.parts) for one in both] == [1, 0]
    assert [one and sum(part.small for part in one.parts) for one in both] == [1, 1]
    stage.play("write n2 written")
    stage.play("write n1 written")
    last = order(stage, "n1")
    assert last is not None
    assert (last.commit, last.small) == (True, 2)
