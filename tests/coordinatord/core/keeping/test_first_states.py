"""Whether all ranks have the same state: each node is told once, when that is known."""

import pytest

from tests.coordinatord.core.keeping.test_resume_choice import break_round, train


@pytest.mark.parametrize(
    ("first", "second", "alike"),
    [("first=5", "", None), ("first=5", "first=5", True), ("first=5", "first=6", False), ("first=5,6", "", False)],
)
def test_all_nodes_are_told_whether_all_ranks_have_the_same_state(first: str, second: str, alike: bool | None) -> None:
    stage = train("n1", "n2")
    stage.play(f"keep n1 {first}", f"keep n2 {second}", "advance 1s")
    assert [stage.desired(node).alike for node in ("n1", "n2")] == [alike, alike]


def test_each_round_is_compared_for_itself_and_no_state_of_another_round_counts() -> None:
    stage = train("n1", "n2")
    stage.play("keep n1 n2 first=5", "advance 1s")
    assert stage.desired("n1").alike
    stage.play("keep n1 n2")
    break_round(stage, "n1", "n2")
    assert stage.desired("n1").alike is None
    stage.play("running n1 n2", "keep n1 first=5", "keep n2 first=7", "advance 1s")
    assert stage.desired("n2").alike is False


def test_a_coordinator_that_is_started_again_learns_it_from_the_nodes() -> None:
    stage = train("n1", "n2")
    stage.play("keep n1 n2 first=5", "advance 1s", "die 1s", "reconnect n1 n2", "advance 1s")
    assert stage.desired("n2").alike
