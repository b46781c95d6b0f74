"""What the coordinator must get right in corners that a transcript does not show."""

from typing import Any

import pytest

from coordinatord.core.rounds.effects import Batch
from coordinatord.core.rounds.events import Disconnected, Reported
from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.values.records import (
    NodeLost,
    NodeReleased,
    RoundStopped,
    RunEnded,
)
from coordinatord.protocol.fields import COUNTER_MAX
from coordinatord.protocol.http.api import RestartsStatus
from coordinatord.protocol.messages import Goal, Phase
from tests.support.builders import an_observed
from tests.support.script import Stage, play

PAIR = ("join n1 n2 min=2 max=2", "running n1 n2")


def test_who_left_and_fell_silent_with_its_connection_open_may_close_it_at_any_time() -> None:
    stage = play("""
        join n1 n2 n3 min=1 max=3
        running n1 n2 n3
        leave n1
        stopped n1
        silence n1
        advance 6s
        stopped n2 n3
        drop n1
    """)
    run = stage.run
    assert list(run.durable.order) == ["n2", "n3"]
    assert list(run.members) == ["n2", "n3"]


def test_a_session_that_a_judgement_in_another_job_ends_may_close_at_any_time() -> None:
    """The judgement comes just before the tick with which the job's round would have ended."""
    stage = play("""
        join n1 min=1 max=1 job=judged
        join n2 n3 min=1 max=2
        running n2 n3
        leave n2
        stopped n2
        silence n2
        advance 39.9s
    """)
    stage.now = stage.run.evidence.stop_overdue_at
    stage.play("ask quarantine n1")
    assert (list(stage.run.members), stage.coordinator.sessions) == (["n3"], 2)
    stage.play("drop n2")


def test_a_node_goes_once_in_the_history_however_it_goes() -> None:
    stage = play("join n1 n2 min=1 max=2", "running n1 n2", "advance 1s")
    stage.report("n1", phase=Phase.SUCCEEDED, leaving=True)
    stage.play("drop n1", "advance 2s", "fail n2", "failed n2")
    gone = [record for _, record in stage.past if isinstance(record, NodeLost | NodeReleased)]
    assert [(record.node, record.reason) for record in gone] == [("n1", "left the job, as asked")]
    assert list(stage.run.members) == ["n2"]


def test_a_heartbeat_of_a_node_that_left_after_success_does_not_stop_the_others() -> None:
    stage = play("""
        join n1 n2 min=1 max=2
        running n1 n2
        succeed n1
        leave n1
        advance 2s
        succeed n2
    """)
    assert stage.state() is State.SUCCEEDED


def test_a_released_node_that_is_left_behind_is_released_from_its_round() -> None:
    stage = play("""
        join n1 n2 min=1 max=2
        running n1 n2
        leave n1
        stopped n1
        running n1
        advance 100s
    """)
    run = stage.run.durable
    assert (list(run.members), list(run.released)) == (["n2"], ["n1"])


def test_a_silent_node_that_was_released_is_forgotten_without_another_word() -> None:
    stage = play("join n1 min=2 max=2 join_timeout_s=1", "join n2 min=3 max=3")  # n2 is refused, so not a member
    stage.play("silence n1", "advance 1s")
    assert [type(record) for _, record in stage.past[-2:]] == [NodeReleased, RunEnded]
    assert stage.play("advance 3.9s") == []
    [closed] = stage.play("advance 0.2s")
    assert closed.strip() == "5.000  -> n1: session closed"


def test_a_reconnected_nodeclient_has_its_old_session_closed_and_is_not_accused() -> None:
    stage = play(*PAIR, "advance 1s")
    closed, sent = stage.play("reconnect n2")
    assert closed.endswith("-> n2, its old session: session closed")
    assert "-> n2: e-1 round 1: run as group rank 1 of 2" in sent
    assert stage.handle(Disconnected(2)) == Batch((), ())
    assert stage.coordinator.sessions == 2


def test_a_straggler_is_sent_why_it_is_to_stop() -> None:
    desired = play(*PAIR, "join n3 min=2 max=2 run=e-0 round=7 phase=running").desired("n3")
    assert (desired.goal, desired.reason) == (
        Goal.STOP,
        "its workers are of a run that this coordinator does not know, or not any more: was its state lost?",
    )


def test_a_straggler_has_time_to_save_only_where_its_own_round_is_stopped_as_planned() -> None:
    """The peers of its workers are gone if their round is an older one."""
    stage = play("join n1 n2 n3 min=2 max=3", "running n1 n2 n3", "silence n3", "ask restart default", "advance 9s")
    stage.play("reconnect n3 phase=running")
    assert (stage.desired("n3").round, stage.desired("n3").planned) == (1, True)
    stage.play("drop n3", "advance 9s", "stopped n1 n2", "running n1 n2", "ask restart default")
    stage.play("reconnect n3 phase=running")
    assert (stage.desired("n3").round, stage.desired("n3").planned) == (2, False)


@pytest.mark.parametrize("before", [(), PAIR], ids=["no run", "another run"])
def test_a_node_that_awaits_its_own_coordinator_is_refused_where_its_run_is_not_known(before: tuple[str, ...]) -> None:
    [refused] = play(*before).play("join n1 min=2 max=2 run=other-1 round=7 phase=running awaits_own=true")
    assert refused.endswith(
        "-> n1: refused may retry (forgotten): this coordinator does not know run other-1 of job default:"
        " it is another one, or has lost its state"
    )


def test_a_node_of_an_earlier_run_of_the_job_is_told_to_end_its_workers() -> None:
    stage = play(*PAIR, "ask stop default", "stopped n1 n2", "join n3 min=2 max=2")
    stage.play("join n1 min=2 max=2 run=e-1 round=1 phase=running awaits_own=true")
    assert (stage.desired("n1").run, stage.desired("n1").goal) == ("e-2", Goal.STOP)


def test_a_node_that_gives_up_its_own_coordinator_is_told_that_the_job_begins_anew() -> None:
    stage = play("join n1 run=other-1 round=7 phase=stopped")
    assert stage.desired("n1").remark == (
        "this coordinator does not know run other-1, in which this node was: the job begins anew"
    )


def test_the_oldest_ended_job_is_forgotten_for_a_new_one_and_live_ones_never() -> None:
    stage = play("join n1 min=1 max=1 job=first", "join n1 min=1 max=1 job=second", jobs_max=2)
    [refused] = stage.play("join n1 job=third")
    assert refused.endswith(": this coordinator already has 2 live jobs, its limit")
    stage.play("succeed n1 job=first", "join n1 job=third")
    assert list(stage.coordinator.jobs) == ["second", "third"]
    stage.play("drop n1 job=first")


def test_what_comes_from_a_refused_session_is_ignored() -> None:
    stage = play("join n1 min=2 max=2", "join n2 min=3 max=3")
    assert stage.handle(Reported(2, an_observed())) == Batch((), ())
    assert stage.handle(Disconnected(2)) == Batch((), ())


@pytest.mark.parametrize("claimed", [2**30 + 1, 2**31 - 1])
def test_a_node_that_remembers_too_much_does_not_use_up_all_numbers_of_rounds(claimed: int) -> None:
    stage = play(f"join n1 min=1 max=1 run=other round={claimed}")
    assert stage.run.durable.round == 2**30 + 1
    stage.play(f"recall n1 round={claimed}")
    assert stage.run.durable.round == 2**30 + 1


def test_a_run_that_has_ended_shows_its_nodes_by_group_rank() -> None:
    stage = play("""
        join n1 min=2 max=2 host=b
        join n2 min=2 max=2 host=a
        running n1 n2
        succeed n1 n2
    """)
    view = stage.view()
    assert [(node.node, node.group_rank) for node in view.nodes] == [("n2", 0), ("n1", 1)]


@pytest.mark.parametrize(
    "wrong",
    [{"heartbeats_per_lease": 2.0}, {"reconnect_grace_s": 6.0}, {"settle_s": 11.0}, {"stop_limit_s": 15.0}],
    ids=str,
)
def test_a_policy_that_contradicts_itself_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        Policy(**wrong)


def test_heartbeats_are_stretched_with_the_number_of_nodes() -> None:
    policy = Policy(heartbeat_s=1.0, heartbeats_per_s_max=4_000)
    sizes = (1, 4_000, 4_001, 5_000, 5_001, 10_000)
    assert [policy.heartbeat_for(nodes) for nodes in sizes] == [1.0, 1.0, 1.25, 1.25, 1.5, 2.5]
    assert Policy(heartbeat_s=0.1, reconnect_grace_s=0.5).heartbeat_for(100) == 0.1


IN_USE = "memory of GPUs is in use: 2.0 GiB of nvidia0 by process 7 of ann"


def test_a_node_whose_round_cannot_end_yet_says_why_as_soon_as_that_changes() -> None:
    stage = play(*PAIR, "fail n1", "stopped n1", "stopping n2")
    for held_up, reason in ((IN_USE, f"its workers are ending: {IN_USE}"), ("", "its workers are ending")):
        stage.report("n2", phase=Phase.STOPPING, held_up=held_up)
        assert {node.node: node.reason for node in stage.view().nodes}["n2"] == reason
    stage.play("stopped n2")
    assert stage.run.durable.round == 2
    assert stage.run.durable.restarts_used == 1, "the failure's own"


# Success that is on record


TWO = """
    join n1 n2 min=1 max=2
    advance 1s
    running n1 n2
    advance 20s
    succeed n1
"""


def stops(stage: Stage) -> list[str]:
    """Return the conditions under which rounds were stopped."""
    return [record.condition for record in stage.records(RoundStopped)]


@pytest.mark.parametrize("went", ["drop n1\nask stop default\nadvance 2s", "drop n1\nadvance 2s\nask stop default"])
def test_a_job_is_done_though_a_node_that_had_succeeded_is_lost_while_the_round_is_stopped(went: str) -> None:
    stage = play(TWO, went, "succeed n2")
    assert [record.node for record in stage.records(NodeLost)] == ["n1"]
    assert stage.state() is State.SUCCEEDED


def test_a_coordinator_that_starts_again_meanwhile_knows_that_node_as_well() -> None:
    stage = play(TWO, "drop n1", "ask stop default", "advance 2s", "die 1s", "reconnect n2", "succeed n2")
    assert [record.node for record in stage.records(NodeLost)] == ["n1"]
    assert stage.state() is State.SUCCEEDED


def test_a_round_starts_though_a_node_that_has_succeeded_was_started_again_before() -> None:
    stage = play(
        "join n1 n2 min=2 max=2\nrunning n1\nsucceed n1\njoin n1 min=2 max=2 incarnation=2",
        "running n2",
    )
    assert stops(stage) == []
    assert stage.state() is State.RUNNING


def test_the_loss_of_a_node_that_had_succeeded_explains_no_failure_of_another() -> None:
    stage = play(TWO, "join n1 min=1 max=2 incarnation=2", "advance 10s", "fail n2", "failed n2")
    assert stops(stage) == ["worker_failed"]
    assert stage.run.durable.restarts_used == 1
    assert stage.run.durable.ledger.settled.detecting < 1.0


# Jobs whose workers torchrun starts


def failed(nodes_min: int, launcher: str, *, leaves: bool) -> Stage:
    """Let two nodes train, the worker of n2 fail, and n2 perhaps leave of it; then the workers of n1 end."""
    job = f"min={nodes_min} max=2 restarts={COUNTER_MAX} launcher={launcher}"
    stage = play(f"join n1 n2 {job}", "running n1 n2", "fail n2")
    stage.play(*(["leave n2"] if leaves else []), "failed n2", "stopped n1")
    return stage


def test_nodes_go_on_without_a_torchrun_that_gave_up_if_they_are_enough() -> None:
    stage = failed(1, "torchrun", leaves=True)
    assert (stage.state(), list(stage.run.durable.order)) == (State.STARTING, ["n1"])


def test_a_torchrun_that_has_restarts_left_starts_again_with_the_others() -> None:
    stage = failed(2, "torchrun", leaves=False)
    assert (stage.state(), stage.run.durable.round, stage.view().restarts) == (
        State.STARTING,
        2,
        RestartsStatus(used=1, max=None),
    )


def test_a_nodeclient_that_leaves_after_a_failure_may_be_replaced() -> None:
    assert failed(2, "nodeclient", leaves=True).state() is State.FORMING
