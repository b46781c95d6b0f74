"""The step that a round resumes from: the newest that is whole, for all nodes or for none, and on record."""

from collections.abc import Iterable, Mapping

import pytest
from msgspec.structs import replace

from coordinatord.core.keeping import resume_choice
from coordinatord.core.keeping.bad_steps import has_spoiled
from coordinatord.core.keeping.known import kept_of
from coordinatord.core.keeping.resume_plan import ResumePlan
from coordinatord.core.rounds.values.records import RoundFormed
from coordinatord.core.rounds.values.resume_point import SPOILED_MAX, ResumePoint
from coordinatord.protocol.kept_state import DiskStep, KeptParts, KeptStep
from coordinatord.protocol.messages import Phase
from tests.support.kept_state import KEY
from tests.support.script import Stage


def train(*nodes: str, **keeps: str) -> Stage:
    """Let nodes train; all keep state unless it is said that one does not."""
    stage = Stage()
    for node in nodes:
        stage.play(f"join {node} min=2 max={len(nodes)} keeps={keeps.get(node, 'yes')} restarts=9")
    stage.play(f"running {' '.join(nodes)}")
    return stage


def break_round(stage: Stage, *nodes: str) -> None:
    """Let a worker fail, and the workers of all end."""
    stage.play(f"fail {nodes[0]}", f"failed {nodes[0]}", f"stopped {' '.join(nodes[1:])}")


def formed(stage: Stage) -> list[ResumePoint | None]:
    return [record.resume for record in stage.records(RoundFormed)]


def test_the_newest_step_that_is_whole_is_chosen_and_recorded_with_what_is_redone() -> None:
    stage = train("n1", "n2")
    stage.play("step n1 12", "keep n1 1:8 1:12 shards=2", "keep n2 1:8 shards=2")
    break_round(stage, "n1", "n2")
    assert formed(stage) == [None, ResumePoint(1, 8, 2, 2, redone=4, nodes=("n1", "n2"))]
    assert "resumes at step 8 from the memory of nodes n1, n2, 4 steps redone" in stage.past[-1][1].reason


@pytest.mark.parametrize("unkept", ["", "SGD"])
def test_the_reason_says_in_whose_memory_the_step_is_and_what_is_not_kept(unkept: str) -> None:
    stage = train("n1", "n2")
    stage.play("step n1 1204", f"keep n2 1:1204 unkept={unkept}" if unkept else "keep n2 1:1204")
    break_round(stage, "n1", "n2")
    words = "resumes at step 1,204 from node n2's memory, 0 steps redone" + (f", without {unkept}" if unkept else "")
    assert stage.past[-1][1].reason.endswith(words)
    assert (view := stage.view().kept) is not None
    assert view.unkept == unkept


@pytest.mark.parametrize("ends", ["succeed n1 n2", "fail n1"])
def test_ranks_that_never_report_a_step_are_named_while_they_train_and_when_the_round_ends(ends: str) -> None:
    stage = train("n1", "n2")
    words = "rank 1 has not called ctx.step, so no step is kept; call it on every rank"
    stage.play("keep n2 unstepped=1", "step n1 1204", "step n2 0")
    assert (view := stage.view().kept) is not None
    assert view.unstepped == words
    if ends == "fail n1":
        break_round(stage, "n1", "n2")
        assert stage.past[-1][1].reason.endswith(f"; {words}")
    else:
        stage.play(ends)
        assert stage.past[-1][1].reason == f"all workers succeeded; {words}"


def test_nodes_that_save_slowly_are_shown_in_their_round_before_they_have_kept_a_step() -> None:
    stage = train("n1", "n2", "n3")
    stage.play("step n1 n2 n3 1")
    assert stage.view().kept is None
    stage.play("keep n2 pageable=refused", "keep n3 pageable=limited", "step n2 n3 2")
    view = stage.view()
    assert view.kept is not None
    assert view.kept.pageable == "node n2: refused"
    assert [None if node.kept is None else node.kept.pageable for node in view.nodes] == [None, "refused", "limited"]
    break_round(stage, "n1", "n2", "n3")
    assert stage.view().kept is None, "of the next round nothing is known yet"


def test_no_node_resumes_where_one_cannot() -> None:
    stage = train("n1", "n2", n2="")
    stage.play("keep n1 1:8")
    break_round(stage, "n1", "n2")
    assert formed(stage) == [None, None]
    assert stage.desired("n1").resume is None


def test_a_step_that_proved_useless_is_not_tried_again_but_an_older_one_and_later_ones_are() -> None:
    stage = train("n1", "n2")
    stage.play("keep n1 1:4 1:8")
    break_round(stage, "n1", "n2")
    stage.play("fetch n2 failed why=digest", "stopped n1 n2", "fetch n2 ready", "running n1 n2", "keep n1 1:4 1:8 3:6")
    break_round(stage, "n1", "n2")
    assert [point and (point.round, point.step) for point in formed(stage)] == [None, (1, 8), (1, 4), (3, 6)]
    run = stage.run.durable
    assert run.restarts_used == 2, "a state that is damaged is nobody's fault"


def test_a_step_of_which_ranks_have_different_states_is_not_used_even_if_one_of_them_goes() -> None:
    stage = train("n1", "n2", "n3")
    stage.play("step n1 8", "keep n1 n2 1:4:5 1:8:7", "keep n3 1:4:5 1:8:9")
    break_round(stage, "n1", "n2", "n3")
    text = (
        "step 8 is not used: rank 0 on node n1 and rank 2 on node n3 should have the same state of it, and do not; "
        "resumes at step 4 from the memory of nodes n1, n2, n3, 4 steps redone"
    )
    assert text in stage.past[-1][1].reason
    stage.play("drop n3", "advance 1s", "stopped n1 n2", "advance 5s")
    assert [point and point.at.step for point in formed(stage)] == [None, 4, 4]
    assert "step 8 is not used: ranks should have had the same state of it, and did not" in stage.past[-1][1].reason


def test_a_coordinator_that_is_started_anew_uses_no_step_of_which_ranks_had_different_states() -> None:
    """One of the nodes may be gone by then, and nobody sees that the other one's state is only one of two."""
    stage = train("n1", "n2")
    stage.play("keep n1 1:4:5 1:8:7", "keep n2 1:4:5 1:8:9")
    break_round(stage, "n1", "n2")
    stage.play("die 0s")
    kept = kept_of(stage.run)
    assert [resume_choice.may_be_chosen(kept, KeptStep(1, step)) for step in (4, 8)] == [True, False]


def test_a_step_of_which_ranks_differed_is_not_read_from_the_disk_either_nor_after_a_later_difference() -> None:
    stage = train("n1", "n2", n1="600s", n2="600s")
    stage.play("step n1 8", "keep n1 1:4:5 1:8:7", "keep n2 1:4:5 1:8:9")
    stage.play(*(f"write {node} written found=e-1:1:8" for node in ("n1", "n2")))
    break_round(stage, "n1", "n2")
    stage.play("fetch n1 n2 ready", "running n1 n2", "step n1 9")
    stage.play("keep n1 1:4:5 2:6:7", "keep n2 1:4:5 2:6:9")
    break_round(stage, "n1", "n2")
    assert [point and (point.at, point.disk) for point in formed(stage)] == [None, *[(KeptStep(1, 4), None)] * 2]
    durable, steps = stage.run.durable, [KeptStep(*at) for at in ((1, 4), (1, 9), (2, 5))]
    assert [has_spoiled(durable, at, disk) for at in steps for disk in (None, "e-1", "e-0")] == (
        [False] * 3 + [True, True, False] + [False] * 3
    )


def test_the_next_run_reads_nothing_from_the_disk_that_an_earlier_one_has_spoiled() -> None:
    stage = train("n1", "n2")
    stage.play("step n1 8", "keep n1 1:8:7", "keep n2 1:8:9")
    break_round(stage, "n1", "n2")
    stage.play("leave n1 n2", "stopped n1 n2", "join n3 min=1 max=1 keeps=600s restarts=9")
    durable = stage.run.durable
    assert (durable.id, durable.earlier[0].run) == ("e-2", "e-1")
    assert [has_spoiled(durable, KeptStep(1, step), "e-1") for step in (7, 8)] == [False, True]


def test_the_oldest_spoiled_steps_become_one_that_covers_them() -> None:
    stage = train("n1", "n2")
    rounds = range(1, SPOILED_MAX + 2)
    for number in rounds:
        stage.play(f"step n1 {8 + number}", f"keep n1 {number}:8:7", f"keep n2 {number}:8:9")
        break_round(stage, "n1", "n2")
        stage.play("fetch n1 n2 ready", "running n1 n2")
    durable = stage.run.durable
    assert len(durable.spoiled) == SPOILED_MAX
    assert all(has_spoiled(durable, KeptStep(number, 8)) for number in rounds)


@pytest.mark.parametrize(("reported", "more"), [((), ""), (("step n1 8",), "; no other step that nodes keep is whole")])
def test_where_ranks_agree_on_no_step_the_run_begins_anew_and_says_why(reported: tuple[str, ...], more: str) -> None:
    stage = train("n1", "n2")
    stage.play(*reported, "keep n1 1:8:7", "keep n2 1:8:9")
    break_round(stage, "n1", "n2")
    assert formed(stage) == [None, None]
    assert stage.past[-1][1].reason.endswith(f"should have the same state of it, and do not{more}")


def test_where_all_nodes_that_kept_steps_are_lost_the_run_begins_anew_and_says_so() -> None:
    stage = train("n1", "n2")
    stage.play("step n1 8", "keep n1 n2 1:8 shards=2", "advance 1s", "drop n1 n2", "advance 1s")
    stage.play("join n3 n4 min=2 max=2 keeps=yes restarts=9", "advance 5s")
    assert formed(stage) == [None, None]
    assert stage.past[-1][1].reason.endswith("; no step that nodes keep is whole")


def test_nobody_waits_for_a_step_on_the_disk_of_which_ranks_turn_out_to_have_different_states() -> None:
    stage = train("n1", "n2", n1="600s", n2="600s")
    stage.play("step n1 8", "keep n1 1:8:7", *(f"write {node} written found=e-1:1:8" for node in ("n1", "n2")))
    stage.play("keep n2 1:8:9")
    break_round(stage, "n1", "n2")
    assert formed(stage) == [None, None]


def test_a_round_ends_if_a_node_has_another_state_of_its_step() -> None:
    stage = train("n1", "n2", "n3")
    stage.play("keep n1 1:4:5 1:8:7")
    break_round(stage, "n1", "n2", "n3")
    assert formed(stage)[-1] == ResumePoint(1, 8, 3, 1, redone=None, nodes=("n1",))
    stage.play("keep n2 1:8:9", "advance 1s")
    assert "step 8 is not used: rank 0 on node n1 and rank 1 on node n2" in stage.past[-1][1].reason
    stage.play("stopped n1 n2 n3")
    assert [point and point.at.step for point in formed(stage)] == [None, 8, 4]


def count_plans(patch: pytest.MonkeyPatch) -> list[ResumePlan]:
    """Collect the plans that are made from now on."""
    made: list[ResumePlan] = []

    class Noted(ResumePlan):
        def __init__(self, point: ResumePoint, holders: Mapping[str, Iterable[KeptParts]]) -> None:
            super().__init__(point, holders)
            made.append(self)

    patch.setattr(resume_choice, "ResumePlan", Noted)
    return made


def test_a_round_is_planned_once_and_not_for_each_node_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    for size in (2, 8):
        nodes = [f"n{number}" for number in range(1, size + 1)]
        stage = train(*nodes)
        stage.play("keep n1 1:8")
        with monkeypatch.context() as patch:
            made = count_plans(patch)
            break_round(stage, *nodes)
            stage.play("advance 5s")
        assert all(stage.desired(node).resume is not None for node in nodes)
        counts.append(len(made))
    assert counts[0] == counts[1]


def test_after_a_restart_no_node_is_told_before_the_small_state_of_all_ranks_is_known() -> None:
    stage = train("n1", "n2")
    stage.play("keep n1 1:8")
    stage.play("keep n2 1:8")  # both have all of the big state, and each the small state of its own rank
    break_round(stage, "n1", "n2")
    stage.play("die 1s", "reconnect n1")
    assert (waiting := stage.desired("n1").resume) is not None
    assert not waiting.complete
    stage.play("reconnect n2", "advance 1s")
    for node in ("n1", "n2"):
        assert (known := stage.desired(node).resume) is not None
        assert known.complete
        assert [source.node for source in known.sources] == [node]


def test_the_key_of_a_node_is_in_no_record_and_no_text() -> None:
    stage = train("n1", "n2")
    stage.play("keep n1 1:8")
    break_round(stage, "n1", "n2")
    assert (resume := stage.desired("n2").resume) is not None
    assert [source.key for source in resume.sources] == [KEY]
    assert KEY not in repr(resume)
    assert KEY not in repr(stage.puppets["n1"].join)
    assert KEY not in repr(stage.past)


def all_killed(after: str) -> Stage:
    """Kill both nodes and their coordinator after step 9 of their second round; the disk has the step `after`."""
    stage = train("n1", "n2", n1="600s", n2="600s")
    stage.play("step n1 4")
    break_round(stage, "n1", "n2")
    stage.play("running n1 n2", "step n1 9", "die 2s")
    for node in ("n1", "n2"):
        stage.play(f"join {node} min=2 max=2 keeps=600s restarts=9 incarnation=2 phase=preparing")
        stage.play(f"write {node} written found=e-1:{after} shards=2")
    stage.play("prepared n1 n2")
    return stage


def test_what_is_redone_is_not_known_if_all_that_knew_it_were_killed() -> None:
    stage = all_killed(after="2:7")
    assert formed(stage)[-1] == ResumePoint(2, 7, 2, 2, redone=None, disk=DiskStep("e-1", 2))
    assert stage.past[-1][1].reason.endswith("resumes at step 7 from disk, an unknown number of steps redone")


def test_what_is_redone_stays_unknown_until_there_are_new_steps() -> None:
    stage = all_killed(after="2:7")
    stage.play("running n1 n2")
    break_round(stage, "n1", "n2")
    stage.play("running n1 n2", "step n1 8")
    break_round(stage, "n1", "n2")
    assert [point.redone for point in formed(stage)[-3:] if point is not None] == [None, None, 1]


@pytest.mark.parametrize(("lost", "words"), [("n1 n2", "at least 3 steps redone"), ("n2", "3 steps redone")])
def test_a_round_of_which_no_node_is_left_may_have_done_more_steps_than_were_reported(lost: str, words: str) -> None:
    stage, settings = Stage(), "min=2 max=2 keeps=600s restarts=9"
    stage.play(f"join n1 n2 n3 {settings}", "running n1 n2", "step n1 n2 7")
    stage.play(*(f"write {node} written found=e-1:1:4" for node in ("n1", "n3")), f"silence {lost}", "advance 30s")
    comes = [f"join n4 {settings}", "write n4 written found=e-1:1:4"]
    stage.play(*(["stopped n1"] if lost == "n2" else comes), "advance 60s")
    assert stage.past[-1][1].reason.endswith(f"resumes at step 4 from disk, {words}")
    assert (view := stage.view().kept) is not None
    assert (view.redone, view.redone_at_least) == (3, lost != "n2")
    left = stage.coordinator.jobs["default"].durable.order
    stage.play(f"running {' '.join(left)}")
    break_round(stage, *left)
    assert stage.past[-1][1].reason.endswith(words), "the round has done no step that is known"


def test_steps_that_a_node_reports_after_the_end_of_its_round_count_as_well() -> None:
    stage = train("n1", "n2", "n3")
    stage.play("step n1 4", "keep n3 1:4", "silence n1 n2", "advance 30s", "stopped n3")
    assert stage.view().state == "forming"
    stage.puppets["n1"].observed = replace(stage.puppets["n1"].observed, steps=(9,), phase=Phase.STOPPED)
    stage.play("reconnect n1", "advance 5s")
    assert (point := formed(stage)[-1]) is not None
    assert point.redone == 5


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
