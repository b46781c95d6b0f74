"""Nodes of one job that were started with different commands: users are warned, and two scripts are two trainings."""

import pytest

from coordinatord.core.rounds.values.records import NodeJoined
from coordinatord.protocol.messages import Goal, Outcome, Result
from tests.support.script import Stage, play

WARNING = (
    "node n2 was started with another command than node n1, and both are in job default: "
    "if that is not meant, give each training its own --job-id"
)


def reason(stage: Stage) -> str:
    """Return the reason for which the last node joined."""
    return [record.reason for record in stage.records(NodeJoined)][-1]


def test_a_node_with_another_command_than_the_first_is_let_in_with_a_warning_that_names_both() -> None:
    stage = play("join n1 min=3 max=3 command=script-1a", "join n2 min=3 max=3 command=script-1b")
    assert (stage.desired("n2").goal, stage.desired("n2").remark) == (Goal.WAIT, WARNING)
    assert reason(stage) == "host host-n2 at 10.0.0.2 with 1 worker; its command differs from that of node n1"


@pytest.mark.parametrize(("first", "second"), [("script-1a", "script-1a"), ("", "script-1a"), ("script-1a", "")])
def test_nothing_is_remarked_on_where_no_difference_is_known(first: str, second: str) -> None:
    stage = play(f"join n1 min=3 max=3 command={first}", f"join n2 min=3 max=3 command={second}")
    assert (stage.desired("n2").remark, "command" in reason(stage)) == ("", False)


def test_the_warning_is_sent_until_the_workers_run_and_again_after_a_reconnect_before_that() -> None:
    stage = play("join n1 min=2 max=2 command=script-1a", "join n2 min=2 max=2 command=script-1b")
    assert (stage.desired("n2").goal, stage.desired("n2").remark) == (Goal.RUN, WARNING)
    stage.puppets["n2"].desired = None
    stage.play("drop n2", "reconnect n2")
    assert (stage.desired("n2").goal, stage.desired("n2").remark) == (Goal.RUN, WARNING)
    stage.play("running n1 n2", "advance 1s")
    assert stage.desired("n2").remark == ""


def test_a_job_begun_anew_by_another_command_has_both_remarks() -> None:
    stage = play("join n1 min=1 max=1 command=script-1a", "succeed n1", "advance 4s")
    stage.play("join n3 min=1 max=1 command=script-1c age_s=0", "join n4 min=1 max=1 command=script-1d")
    again, other = stage.desired("n3").remark, stage.desired("n4").remark
    assert again.endswith("this begins run e-2")
    assert other.startswith(f"{again}; node n4 was started with another command than node n3")


def test_a_node_with_another_script_is_another_training_and_is_refused() -> None:
    stage = play("join n1 min=1 max=1 command=script-1a")
    [refused] = stage.play("join n2 min=1 max=1 command=script-2a")
    assert refused.endswith(
        "-> n2: refused for good (spec_differs): another training runs under job id default, and node n1 of it starts"
        " another script: give this one a --job-id of its own, or end that one first: nodeclient stop default"
    )
    stage.play("join n2 min=1 max=1 command=script-2a role=server")
    assert stage.desired("n2").goal is Goal.WAIT, "nodes of another role may run something else"


def test_a_node_that_is_gone_keeps_out_no_other_script() -> None:
    stage = play("join n1 min=1 max=1 command=script-1a", "drop n1", "join n2 min=1 max=1 command=script-2a")
    assert stage.puppets["n2"].desired is not None


@pytest.mark.parametrize(
    ("command", "result", "code", "text"),
    [
        ("script-1a", Result.SUCCEEDED, 0, ""),
        ("script-1b", Result.FAILED, 75, ", and its command differs from that of node n1"),
    ],
)
def test_a_spare_says_that_it_ran_nothing_and_succeeds_only_if_its_command_was_the_jobs(
    command: str, result: Result, code: int, text: str
) -> None:
    stage = play("join n1 min=1 max=1 command=script-1a", f"join n2 min=1 max=1 command={command}", "succeed n1")
    assert stage.desired("n1").outcome == Outcome(Result.SUCCEEDED, 0, "all workers succeeded")
    assert stage.desired("n2").outcome == Outcome(
        result, code, f"all workers succeeded; this node was a spare and ran no worker{text}"
    )
