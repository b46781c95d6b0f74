"""The newest step on the disk counts as long as it is there: nodes look now and then, and somebody may delete it."""

import pytest

from coordinatord.core.keeping.write_progress import RETRY_S, Persisting
from coordinatord.core.rounds.state.durable import State
from coordinatord.protocol.kept_state import KeptStep
from tests.support.kept_runs import a_write
from tests.support.running_job import running_job, to_write
from tests.support.script import Stage

NODES = ("n1", "n2")
STOP = ("ask stop default", "stopped n1 n2")


def found_by(*nodes: str, settings: str = "min=2 max=2 keeps=600s") -> Stage:
    """Let a job write step 8, which these nodes find, and keep it in memory too."""
    stage = running_job(NODES, settings)
    stage.play("keep n1 n2 1:8 protected=yes", "advance 600s", "write n1 n2 written", "write n1 committed")
    stage.play(*(f"write {node} committed found=e-1:1:8" for node in nodes))
    assert shown(stage) == (8, "")
    return stage


def shown(stage: Stage) -> tuple[int | None, str]:
    """Return the step on the disk in the status, and what is said of the disk."""
    kept = stage.view().kept
    assert kept is not None
    return kept.disk_step, kept.disk_problem


def test_a_step_that_is_gone_is_written_again_at_once() -> None:
    stage = found_by("n1", "n2")
    stage.play("write n1 committed lacks=8")
    assert (shown(stage), to_write(stage, "n1")) == ((8, ""), None), "n2 may have looked later"
    stage.play("write n2 committed lacks=8")
    assert shown(stage) == (None, "step 8 was there, and no node finds it any more")
    assert (to_write(stage, "n1"), to_write(stage, "n2")) == (8, 8)
    stage.play("write n1 n2 written", "write n1 committed")
    assert shown(stage) == (8, "")


def test_an_older_step_counts_if_only_the_newest_is_gone() -> None:
    stage = found_by("n1", "n2")
    stage.play("keep n1 n2 1:8 1:9 protected=yes", "advance 600s", "write n1 n2 written", "write n1 committed")
    stage.play("write n1 n2 committed found=e-1:1:9", "write n1 n2 committed lacks=9")
    assert shown(stage) == (8, "step 9 was there, and no node finds it any more")
    stage.play("write n1 committed found=e-1:1:9")
    assert shown(stage) == (9, "")


def test_a_step_in_which_ranks_differ_is_said_to_be_missing_until_they_agree_on_a_later_one() -> None:
    stage = found_by("n1", "n2")
    stage.play("keep n1 1:8:7 1:16:7", "keep n2 1:8:7 1:16:9", "advance 1s")
    why = "rank 0 on node n1 and rank 1 on node n2 should have the same state of it, and do not"
    assert shown(stage) == (8, f"step 16 is not used: {why}")
    stage.play("keep n1 n2 1:8:7 1:24:7", "advance 1s")
    assert shown(stage) == (8, "")


@pytest.mark.parametrize("keeps", [True, False])
def test_a_run_that_ends_does_not_say_that_a_step_is_there_which_is_gone(keeps: bool) -> None:
    stage = found_by("n1", "n2", settings="min=2 max=2 keeps=600s restarts=9")
    stage.play("fail n1", "failed n1", "drop n2", "write n1 committed lacks=8", *([] if keeps else ["keep n1"]))
    stage.play("advance 20s")
    assert stage.state() is State.FORMING
    stage.play("ask stop default")
    if keeps:
        stage.play("write n1 written", "write n1 committed")
    end = "step 8 is on the disk" if keeps else "step 8 is not on the disk: no node finds it any more"
    assert stage.run.durable.reason == f"stopped by alice; {end}"


@pytest.mark.parametrize("nodes", [(), ("n1",)], ids=["nobody has looked", "the other one has not"])
def test_a_node_that_has_not_looked_yet_proves_nothing(nodes: tuple[str, ...]) -> None:
    stage = found_by(*nodes)
    stage.play("keep n2 1:8 1:9", "step n2 9", "join n3 min=2 max=2 keeps=600s", "leave n1", "stopped n1 n2", "drop n1")
    stage.play("advance 1s")
    assert shown(stage) == (8, "")


def test_a_node_that_is_back_and_does_not_find_the_step_has_looked_again() -> None:
    stage = found_by("n1", settings="min=1 max=2 keeps=600s restarts=9")
    stage.play("leave n1", "stopped n1 n2", "drop n1", "join n1 min=1 max=2 keeps=600s restarts=9 incarnation=2")
    assert shown(stage)[0] is None


@pytest.mark.parametrize("keeps", ["keeps=yes", ""], ids=["in memory", "nothing"])
def test_a_node_that_is_back_without_persist_has_not_looked(keeps: str) -> None:
    """It says nothing about a disk at which it does not look."""
    stage = found_by("n1", settings="min=2 max=2 keeps=600s restarts=9")
    stage.play("drop n1", "keep n2", "stopped n2", f"join n1 min=2 max=2 {keeps} restarts=9 incarnation=2")
    stage.play("advance 20s")
    assert (stage.state(), shown(stage)) == (State.FORMING, (8, ""))
    text = "node n1 found step 8 on the disk before it went, and node n1 does not: start it with --persist too"
    assert stage.desired("n1").reason.startswith(text)


def test_the_last_node_that_looks_decides_beside_one_that_does_not() -> None:
    stage = found_by("n1", "n2", settings="min=2 max=2 keeps=600s restarts=9")
    stage.play("drop n1", "join n1 min=2 max=2 restarts=9 incarnation=2", "write n2 committed lacks=8")
    assert shown(stage)[0] is None


def test_a_node_that_finds_the_step_again_may_leave() -> None:
    stage = found_by("n1", "n2", settings="min=1 max=2 keeps=600s restarts=9")
    stage.play("write n1 committed lacks=8", "write n1 committed found=e-1:1:8", "leave n1", "stopped n1 n2", "drop n1")
    stage.play("drop n2", "advance 20s")
    assert stage.view().kept is not None
    assert shown(stage)[0] == 8


def test_a_restarted_coordinator_counts_what_nodes_find() -> None:
    stage = found_by("n1", "n2")
    stage.play("die 1s", "reconnect n1")
    assert shown(stage)[0] == 8
    stage.play("write n1 committed lacks=8")
    assert shown(stage)[0] is None, "n2 is not heard yet"
    stage.play("reconnect n2")
    assert shown(stage) == (8, "")


def test_a_round_does_not_begin_anew_beside_a_step_that_is_gone() -> None:
    stage = found_by("n1", "n2", settings="min=2 max=2 keeps=600s restarts=9")
    stage.play(
        "keep n1", "keep n2", "write n1 n2 committed lacks=8", "fail n1", "failed n1", "stopped n2", "advance 3s"
    )
    assert stage.state() is State.FORMING
    assert "step 8 was written to the disk, and node n1 does not find it any more" in stage.desired("n1").reason


def test_a_step_that_is_whole_settles_everything() -> None:
    disk, at = Persisting(), KeptStep(1, 8)
    disk.begin(a_write(at))
    disk.fail("no space left", 50.0, at)
    assert (disk.problem, disk.retry_at, disk.failed_at, disk.aborted) == ("no space left", 50.0 + RETRY_S, at, (1,))
    disk.begin(a_write(at))
    disk.succeed(100.0)
    assert (disk.found.newest, disk.since, disk.problem, disk.failed_at, disk.aborted) == (at, 100.0, "", None, ())
