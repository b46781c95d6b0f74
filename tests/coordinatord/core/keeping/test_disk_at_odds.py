"""A training never begins anew while some node of the round finds on the disk what it could go on from."""

import pytest
from msgspec.structs import replace

from coordinatord.core.rounds.values.records import NodeReleased, RoundFormed, RoundStopped
from coordinatord.protocol.messages import Observed
from tests.support.script import Stage

FOUND = "found=e-0:3:1204 shards=2"


def join(*disks: str, least: int = 2) -> Stage:
    """Let nodes n1, n2 ... join a new run, none of them ready yet; each writes to a disk so often, or `no`."""
    stage = Stage()
    for number, disk in enumerate(disks, start=1):
        stage.play(f"join n{number} min={least} max={len(disks)} keeps={disk} phase=preparing")
    return stage


def formed(stage: Stage) -> list[str]:
    return [record.reason for record in stage.records(RoundFormed)]


@pytest.mark.parametrize("least", [1, 2])
def test_a_round_waits_until_all_find_what_one_of_them_finds(least: int) -> None:
    stage = join("600s", "600s", least=least)
    stage.play(f"write n1 written {FOUND}", "prepared n1 n2", "advance 30s")
    assert not formed(stage)
    words = "node n1 finds step 1,204 on the disk, and node n2 does not: is --persist the same directory on both"
    assert stage.desired("n2").reason.startswith(words)
    stage.play(f"write n2 written {FOUND}", "advance 3s")
    [reason] = formed(stage)
    assert reason.endswith("resumes at step 1,204 from disk")


def test_a_node_without_a_disk_is_warned_and_named_while_it_has_a_part_that_no_other_node_has() -> None:
    stage = join("600s", "yes")
    remark = "node n2 was started without --persist, and others with it: start it with the same --persist"
    assert (stage.desired("n1").remark, stage.desired("n2").remark) == ("", remark)
    stage.play("prepared n1 n2", "running n1 n2", "keep n1 1:8 shards=2 protected=yes")
    stage.play("keep n2 1:8 shards=2 protected=yes", "advance 700s")
    kept = stage.view().kept
    assert kept is not None
    assert kept.disk_problem == "there is no --persist on node n2: start each node with the same one"


def test_a_run_that_ends_before_its_first_write_says_that_the_step_of_an_earlier_run_is_still_there() -> None:
    stage = join("600s", "600s")
    stage.play(f"write n1 n2 written {FOUND}", f"write n2 written {FOUND}", "prepared n1 n2", "running n1 n2")
    stage.play("leave n1 n2", "stopped n1 n2", "advance 200s")
    assert stage.run.durable.reason.endswith("; step 1,204 is still on the disk")


def read_in_vain(*disks: str) -> Stage:
    """Let a first round resume from the disk; node n2 cannot read the step."""
    stage = join(*disks)
    for number in range(1, len(disks) + 1):
        stage.play(f"write n{number} written {FOUND}")
    stage.play(
        "prepared " + " ".join(f"n{number}" for number in range(1, len(disks) + 1)),
        "fetch n2 failed why=digest",
        "write n2 written unusable=digest",
    )
    return stage


@pytest.mark.parametrize(("unusable", "why"), [("digest", "digest"), ("", "it is no longer on the disk")])
def test_a_round_ends_if_one_of_its_nodes_no_longer_finds_the_step_to_resume_from(unusable: str, why: str) -> None:
    """The node may not have been told to read it yet. Then it cannot report that it failed to."""
    stage = join("600s", "600s")
    stage.play(f"write n1 n2 written {FOUND}", "prepared n1 n2")
    observed = stage.puppets["n2"].observed
    assert observed.kept is not None
    lost = replace(observed.kept, persisted=(), unusable=unusable)
    stage.puppets["n2"].observed = replace(observed, kept=lost)
    stage.play("advance 3s")
    reasons = [record.reason for record in stage.records(RoundStopped)]
    assert reasons == [f"node n2 could not get the state of step 1,204: {why}"]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_step_that_one_could_not_read_is_not_tried_again_and_not_begun_anew_beside(restarted: bool) -> None:
    stage = read_in_vain("600s", "600s")
    stage.play("stopped n1 n2")
    if restarted:
        stage.play("die 1s", "reconnect n1 n2")
    stage.play("advance 30s")
    assert len(formed(stage)) == 1
    words = "node n1 finds step 1,204 on the disk, and node n2 does not: digest. All would begin anew"
    assert stage.desired("n1").reason == words
    stage.play(f"write n2 written {FOUND}")  # the file system was away for a moment
    stage.play("advance 3s")
    assert formed(stage)[1].endswith("resumes at step 1,204 from disk")


def test_what_nobody_can_use_is_said_with_what_to_do() -> None:
    stage = join("600s", "600s")
    stage.play("write n1 n2 written unusable=digest", "prepared n1 n2", "advance 30s")
    assert not formed(stage)
    words = "node n1 can use nothing on the disk: digest: mend that, or remove the step from --persist"
    assert stage.desired("n1").reason.startswith(words)


def test_an_older_step_that_all_can_read_is_taken_and_an_unusable_one_is_no_obstacle() -> None:
    stage = join("600s", "600s")
    stage.play("write n1 n2 written found=e-0:3:1100 shards=2", f"write n1 written {FOUND}")
    stage.puppets["n2"].observed = unusable(stage.puppets["n2"].observed)
    stage.play("prepared n1 n2")
    [reason] = formed(stage)
    assert reason.endswith("resumes at step 1,100 from disk")


def unusable(observed: Observed) -> Observed:
    assert observed.kept is not None
    return replace(observed, kept=replace(observed.kept, unusable="digest"))


def test_a_step_that_the_run_has_written_and_nobody_sees_any_more_is_waited_for() -> None:
    """The file system may have been unmounted on all hosts."""
    stage = join("600s", "600s")
    stage.play("prepared n1 n2", "running n1 n2")
    for node in ("n1", "n2"):
        stage.play(f"write {node} written found=e-1:1:8", f"write {node} written unusable=none")
        stage.puppets[node].observed = replace(stage.puppets[node].observed, kept=None)
    stage.play("fail n1", "failed n1", "stopped n2", "advance 30s")
    assert len(formed(stage)) == 1
    words = "step 8 was written to the disk, and node n1 does not find it any more: is --persist still mounted?"
    assert stage.desired("n1").reason.startswith(words)


def test_who_waits_longest_does_not_leave_the_others_to_begin_anew() -> None:
    stage = join("600s", "600s", "600s", least=2)
    stage.play(f"write n1 written {FOUND}", "prepared n1 n2 n3", "leave n1", "drop n1", "advance 30s")
    assert not formed(stage)
    words = "node n1 found step 1,204 on the disk before it went, and node n2 does not: is --persist the same directory"
    assert stage.desired("n2").reason.startswith(words)
    stage.play(f"write n2 n3 written {FOUND}", "advance 3s")
    [reason] = formed(stage)
    assert reason.endswith("resumes at step 1,204 from disk")


def test_what_a_node_found_counts_no_more_when_it_is_back_and_does_not_find_it() -> None:
    stage = join("600s", "600s")
    stage.play(
        f"write n1 written {FOUND}",
        "prepared n1 n2",
        "leave n1",
        "drop n1",
        "join n1 min=2 max=2 keeps=600s phase=preparing incarnation=2",
        "prepared n1",
        "advance 3s",
    )
    assert len(formed(stage)) == 1


def test_nodes_that_do_not_find_the_same_are_told_so_when_they_have_waited_in_vain() -> None:
    stage = join("600s", "600s")
    stage.play(f"write n1 written {FOUND}", "prepared n1 n2", "advance 70s")
    assert not formed(stage)
    outcomes = [record.outcome.summary for record in stage.records(NodeReleased)]
    assert outcomes[0].startswith("no round within 60 s: node n1 finds step 1,204 on the disk, and node n2 does not")
