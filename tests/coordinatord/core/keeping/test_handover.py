"""A node that is to leave stays until others have what it alone keeps, and no longer than that takes."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from coordinatord.core.keeping.handover import HAND_OVER_S
from coordinatord.core.rounds.values.records import RoundFormed
from coordinatord.protocol.messages import Goal
from tests.support.kept_state import kept_parts
from tests.support.running_job import running_job
from tests.support.script import Stage

NODES = ("n1", "n2", "n3")


def at_step_12(
    shards: int, nodes: Sequence[str] = NODES, options: str = "min=2 max=3 keeps=yes", spares: Sequence[str] = ()
) -> Stage:
    """Return a round whose nodes have kept step 12."""
    stage = running_job(nodes, options, spares)
    stage.play(f"keep {' '.join(nodes)} 1:12 shards={shards}", f"step {nodes[0]} 12", "advance 1s")
    return stage


def left(shards: int, end: str = "stopped") -> Stage:
    """Let n3 leave a round whose nodes have kept step 12, and the round end; `end` says how the workers of n3 do."""
    stage = at_step_12(shards)
    stage.play("leave n3", f"{end} n3", "stopped n1 n2", "advance 3s")
    return stage


def resumes_at(stage: Stage) -> int | None:
    formed = stage.records(RoundFormed)[-1]
    assert [ranks.node for ranks in formed.nodes] == ["n1", "n2"]
    return None if formed.resume is None else formed.resume.step


@pytest.mark.parametrize("end", ["stopped", "succeed"])
def test_it_stays_until_all_others_have_what_they_resume_from(end: str) -> None:
    stage = left(shards=3, end=end)
    assert resumes_at(stage) == 12
    assert [stage.desired(node).goal for node in NODES] == [Goal.RUN, Goal.RUN, Goal.WAIT]
    stage.play("fetch n1 ready")
    assert stage.desired("n3").goal is Goal.WAIT
    stage.play("fetch n2 ready")
    assert stage.desired("n3").goal is Goal.EXIT


def test_a_spare_gets_its_ranks_and_its_shards_and_the_others_fetch_nothing() -> None:
    stage = at_step_12(shards=3, options="min=3 max=3 keeps=yes", spares=("n0",))
    stage.play("leave n2", "stopped n1 n2 n3")
    assert {node: sources(stage, node) for node in ("n1", "n0", "n3")} == {
        "n1": {"n1": [0]},
        "n0": {"n2": [1]},
        "n3": {"n3": [2]},
    }


def sources(stage: Stage, node: str) -> dict[str, list[int]]:
    """Return of which ranks a node gets parts from whom."""
    resume = stage.desired(node).resume
    assert resume is not None
    return {
        source.node: [rank for part in source.parts for rank in range(part.first_rank, part.first_rank + part.ranks)]
        for source in resume.sources
    }


def test_it_leaves_at_once_where_others_have_the_same() -> None:
    stage = left(shards=1)
    assert resumes_at(stage) == 12
    assert stage.desired("n3").goal is Goal.EXIT


def test_it_waits_until_another_node_has_kept_the_last_step_too() -> None:
    stage = at_step_12(shards=1)
    stage.play("leave n3", "keep n3 1:13 shards=1", "stopped n3")
    assert stage.desired("n3").goal is Goal.STOP, "the others may yet fail to save that step"
    stage.play("keep n1 1:13 shards=1", "advance 1s")
    assert stage.desired("n3").goal is Goal.EXIT
    assert stage.desired("n2").goal is Goal.STOP


def test_it_has_as_long_from_when_the_round_is_formed_that_resumes_from_what_it_keeps() -> None:
    stage = at_step_12(shards=3, options="min=3 max=3 keeps=yes")
    stage.play("leave n3", "stopped n1 n2 n3", f"advance {HAND_OVER_S - 1}s", "join n4 min=3 max=3 keeps=yes")
    assert sources(stage, "n4") == {"n3": [2]}
    stage.play(f"advance {HAND_OVER_S - 1}s")
    assert stage.desired("n3").goal is Goal.WAIT
    stage.play("advance 1s")
    assert stage.desired("n3").goal is Goal.EXIT


def test_it_stays_too_if_the_coordinator_is_started_again_meanwhile() -> None:
    stage = left(shards=3)
    stage.play("die 1s", "reconnect n3")
    assert stage.desired("n3").goal is Goal.WAIT
    stage.play("reconnect n1 n2", "advance 1s")
    assert stage.desired("n3").goal is Goal.WAIT
    stage.play("fetch n1 n2 ready", "advance 1s")
    assert stage.desired("n3").goal is Goal.EXIT


def hold_shard_of_n3(stage: Stage, node: str) -> None:
    """Let a node hold what n3 has kept of step 12."""
    puppet = stage.puppets[node]
    assert puppet.observed.kept is not None
    copy = kept_parts(1, 12, range(2, 3), world_size=3, shards=3)
    kept = replace(puppet.observed.kept, parts=(*puppet.observed.kept.parts, copy))
    puppet.observed = replace(puppet.observed, kept=kept)


def test_it_stays_until_the_last_one_has_what_the_others_hold_by_then() -> None:
    """That one would have to get the part anew from another node."""
    stage = left(shards=3)
    hold_shard_of_n3(stage, "n1")
    stage.play("fetch n1 ready", "advance 1s")
    assert stage.desired("n3").goal is Goal.WAIT
    stage.play("fetch n2 ready")
    assert stage.desired("n3").goal is Goal.EXIT


def test_it_does_not_stay_for_what_another_node_has_a_copy_of() -> None:
    stage = at_step_12(shards=3, options="min=2 max=3 keeps=copies")
    hold_shard_of_n3(stage, "n1")
    stage.play("advance 1s", "leave n3", "stopped n1 n2 n3")
    assert stage.desired("n3").goal is Goal.EXIT
    assert resumes_at(stage) == 12


def test_of_two_nodes_that_leave_with_the_same_shard_one_stays_until_others_have_it() -> None:
    stage = at_step_12(shards=2, nodes=(*NODES, "n4"), options="min=2 max=4 keeps=yes")
    stage.play("leave n2 n4", "stopped n1 n2 n3 n4")
    assert [stage.desired(node).goal for node in ("n2", "n4")] == [Goal.EXIT, Goal.WAIT]
    stage.play("advance 3s")
    assert [stage.desired(node).goal for node in ("n1", "n3", "n4")] == [Goal.RUN, Goal.RUN, Goal.WAIT]
    stage.play("fetch n1 n3 ready")
    assert stage.desired("n4").goal is Goal.EXIT


def test_of_two_that_stayed_since_not_all_were_heard_one_stays_until_others_have_it() -> None:
    stage = at_step_12(shards=2, nodes=("n1", "n2"), options="min=2 max=2 keeps=yes", spares=("n3", "n4"))
    stage.play("leave n2", "stopped n1 n2", "keep n3 1:12 shards=2", "advance 1s", "leave n3", "die 1s")
    stage.play("reconnect n1 n3 n2", "stopped n1 n3")
    assert [stage.desired(node).goal for node in ("n2", "n3")] == [Goal.WAIT, Goal.WAIT]
    stage.play("reconnect n4")
    assert sorted(stage.desired(node).goal for node in ("n2", "n3")) == [Goal.EXIT, Goal.WAIT]


def test_of_two_that_stayed_for_the_disk_one_stays_until_others_have_it() -> None:
    stage = at_step_12(shards=1, nodes=("n1", "n2"), options="min=2 max=2 keeps=yes+600s", spares=("n3", "n4"))
    stage.play("leave n1 n2", "stopped n1 n2", "write n1 n2 failed why=full", "running n3 n4")
    assert [stage.desired(node).goal for node in ("n1", "n2", "n3", "n4")] == [Goal.EXIT, Goal.WAIT, Goal.RUN, Goal.RUN]
    stage.play("fetch n3 n4 ready")
    assert stage.desired("n2").goal is Goal.EXIT


def test_a_round_waits_until_it_is_heard_if_the_coordinator_is_started_again_meanwhile() -> None:
    stage = at_step_12(shards=3, options="min=3 max=3 keeps=yes")
    stage.play(
        "leave n3", "stopped n1 n2 n3", "die 1s", "join n4 min=3 max=3 keeps=yes", "reconnect n1 n2", "advance 1s"
    )
    assert stage.desired("n4").goal is Goal.WAIT
    assert stage.desired("n4").reason == "what nodes keep is known when all are heard again"
    stage.play("reconnect n3")
    assert sources(stage, "n4") == {"n3": [2]}


def test_it_stays_in_the_job_when_an_operator_takes_a_drain_back() -> None:
    stage = at_step_12(shards=3)
    stage.play("ask drain n3", "stopped n1 n2 n3", "ask undrain n3", f"advance {HAND_OVER_S + 1}s")
    assert stage.desired("n3").goal is not Goal.EXIT


def test_a_node_that_stays_after_all_waits_for_others_no_longer_than_any_other() -> None:
    stage = at_step_12(shards=3, options="min=3 max=3 keeps=yes")
    stage.play("ask drain n3", "stopped n1 n2 n3", "drop n1 n2")
    assert stage.desired("n3").goal is Goal.WAIT
    stage.play("ask undrain n3", "advance 1000s")
    assert stage.desired("n3").goal is Goal.EXIT
