"""The last step of nodes that all leave reaches the disk, though one of them fails; or they say that it does not."""

import pytest

from coordinatord.core.keeping.write_plan import END_S
from coordinatord.core.keeping.write_progress import RETRY_S
from coordinatord.core.own_end import SIGNALS_APART_S, may_end_at
from coordinatord.core.rounds.queries.reasons import situation
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.values.records import RoundStopped
from coordinatord.protocol.messages import Goal, Outcome, Result
from tests.support.running_job import order, running_job
from tests.support.script import Stage

NODES = ("n1", "n2", "n3")
THREE = "min=3 max=3 keeps=600s restarts=0"
LEAVE, STOP, FAIL, SUCCEED = "leave n1 n2 n3", "ask stop default", "fail n1", "succeed n1"
ENDS = {LEAVE: State.LEFT, STOP: State.STOPPED, FAIL: State.FAILED, SUCCEED: State.SUCCEEDED}
WAITS = {LEAVE: State.FORMING, STOP: State.FORMING, FAIL: State.STOPPING, SUCCEED: State.STOPPING}
"""The state in which a run waits for the disk before it ends."""


def ending(shards: int, end: str = LEAVE) -> Stage:
    """Let all nodes of a job go that have kept step 100; they have been told to write it."""
    stage = running_job(NODES, THREE)
    stage.play(f"keep n1 n2 n3 1:100 of=3 shards={shards}")
    ended = "succeed" if end == SUCCEED else "stopped"
    stage.play("advance 1s", end, f"{'failed' if end == FAIL else ended} n1")
    assert writers(stage) == {}, "workers of two nodes may still save"
    stage.play(f"{ended} n2 n3")
    assert writers(stage) == {"n1": 100, "n2": 100, "n3": 100}
    return stage


def writers(stage: Stage) -> dict[str, int]:
    """Return the nodes that are to write, and which step."""
    orders = {node: order(stage, node) for node in NODES if node in stage.puppets}
    return {node: asked.step for node, asked in orders.items() if asked is not None}


def write(stage: Stage, *nodes: str) -> None:
    """Let these nodes write what they are to write, and one of them make the step whole."""
    stage.play(f"write {' '.join(nodes)} written")
    (committer,) = [node for node in nodes if (asked := order(stage, node)) is not None and asked.commit]
    stage.play(f"write {committer} committed")


def last_words(stage: Stage, node: str) -> str:
    """Return what a node is told at its end."""
    desired = stage.desired(node)
    assert desired.goal is Goal.EXIT
    assert desired.outcome is not None
    return desired.outcome.summary


@pytest.mark.parametrize("end", ENDS)
def test_others_write_at_once_what_a_node_that_is_gone_was_to_write(end: str) -> None:
    stage = ending(shards=1, end=end)
    stage.play("drop n3")
    assert writers(stage) == {"n1": 100, "n2": 100, "n3": 100}, "n3 cannot hear that it is to write no more"
    write(stage, "n1", "n2")
    assert "is not on the disk" not in last_words(stage, "n1")
    stage.play("advance 60s")  # n3 might have come back
    assert stage.state() is ENDS[end]


@pytest.mark.parametrize("end", ENDS)
def test_others_write_at_once_what_a_node_has_failed_to_write(end: str) -> None:
    stage = ending(shards=1, end=end)
    stage.play("write n2 failed why=full")
    assert writers(stage) == {"n1": 100, "n3": 100}
    stage.play("write n3 failed why=full")
    assert writers(stage) == {"n1": 100}
    write(stage, "n1")
    assert stage.state() is ENDS[end]
    assert "is not on the disk" not in last_words(stage, "n2")
    assert stage.desired("n2").remark == ""
    assert stage.run.durable.reason.endswith("; step 100 is on the disk")


@pytest.mark.parametrize("end", ENDS)
def test_a_write_that_nobody_else_can_do_is_tried_again_after_a_pause(end: str) -> None:
    stage = ending(shards=3, end=end)
    stage.play("write n2 failed why=full")
    assert (writers(stage), stage.state()) == ({}, WAITS[end])
    stage.play(f"advance {RETRY_S - 1:g}s")
    assert (writers(stage), stage.state()) == ({}, WAITS[end])
    stage.play("advance 1s")
    write(stage, *NODES)
    assert stage.state() is ENDS[end]


def test_nodes_that_all_leave_wait_for_the_disk_and_not_for_others() -> None:
    stage = ending(shards=3)
    stage.play("write n2 failed why=full")
    assert stage.desired("n1").reason == "it leaves as soon as what it keeps is on the disk"
    assert situation(stage.run, stage.now) == "waiting for nodes: 0 of 3 joined; leaving: nodes n1, n2, n3"


@pytest.mark.parametrize("end", ENDS)
def test_nodes_go_two_minutes_after_the_first_attempt_at_the_latest_and_say_what_is_lost(end: str) -> None:
    stage = ending(shards=3, end=end)
    for _ in range(3):
        stage.play("write n2 failed why=full", f"advance {RETRY_S:g}s")
        assert writers(stage) == dict.fromkeys(NODES, 100)
    stage.play("write n2 failed why=full")
    assert stage.state() is ENDS[end], "there is no time for another attempt"
    lost = "; step 100 is not on the disk: node n2: full"
    assert last_words(stage, "n1").endswith(lost)
    assert stage.desired("n1").remark == lost.removeprefix("; ")
    assert stage.run.durable.reason.endswith(lost)


@pytest.mark.parametrize("end", [STOP, SUCCEED])
def test_nodes_are_warned_of_a_step_that_a_hanging_disk_has_lost(end: str) -> None:
    stage = ending(shards=3, end=end)
    stage.play(f"advance {END_S:g}s")
    assert stage.state() is ENDS[end]
    assert stage.desired("n1").remark.startswith("step 100 is not on the disk: nothing was written for")


@pytest.mark.parametrize("end", [STOP, FAIL, SUCCEED])
def test_a_job_that_ends_is_stopping_while_it_waits_for_the_disk(end: str) -> None:
    stage = ending(shards=1, end=end)
    stage.play("advance 5s")
    view = stage.view()
    assert (view.state, view.state_s) == ("stopping", 5.0)


def test_nodes_of_a_job_that_is_stopped_are_told_how_long_the_disk_gets() -> None:
    desired = ending(shards=1, end=STOP).desired("n1")
    assert desired.wait_s is not None
    assert 0 < desired.wait_s <= END_S, "and not how long they would wait for a round"


@pytest.mark.parametrize("end", ENDS)
def test_a_node_that_is_back_soon_writes_at_once_what_nobody_else_has(end: str) -> None:
    stage = ending(shards=3, end=end)
    stage.play("drop n3", "advance 0.5s")
    assert (writers(stage).get("n1"), stage.state()) == (None, WAITS[end])
    stage.play("reconnect n3", "advance 1s")
    write(stage, *NODES)
    assert stage.state() is ENDS[end]


def test_a_step_that_is_lost_with_a_node_is_named_by_the_run_that_ends() -> None:
    stage = ending(shards=3)
    stage.play("silence n3", "advance 20s", "drop n3", "advance 60s")
    assert stage.state() is State.LEFT
    assert stage.run.durable.reason.endswith("step 100 is not on the disk: node n3 is gone")


def test_a_node_that_has_a_newer_step_stays_while_others_write_an_older_one() -> None:
    stage = running_job(NODES, THREE)
    for node in ("n1", "n2"):
        stage.play(f"keep {node} 1:100 of=3 protected=yes", "advance 1s")
    stage.play("advance 600s")
    assert writers(stage) == {"n1": 100, "n2": 100}
    stage.play("keep n3 1:101 of=3", LEAVE, "stopped n1 n2 n3")
    assert writers(stage) == {"n1": 100, "n2": 100}
    write(stage, "n1", "n2")
    assert writers(stage) == {"n3": 101}
    write(stage, "n3")
    assert stage.state() is State.LEFT


def test_a_node_with_an_older_step_stays_where_the_newest_may_be_damaged() -> None:
    stage = running_job(("n1", "n2"), "min=2 max=2 keeps=600s restarts=2")
    stage.play(
        "keep n1 1:100 of=2",
        "keep n2 1:101 of=2",
        "fail n2",
        "failed n2",
        "stopped n1",
        "fetch n1 failed why=digest",
        "leave n1 n2",
        "stopped n1 n2",
    )
    assert writers(stage) == {"n2": 101}, "nobody knows whether it is damaged before it is written"
    assert stage.desired("n1").goal is not Goal.EXIT
    stage.play("keep n2", "write n2 failed why=damaged")
    assert writers(stage) == {"n1": 100}
    write(stage, "n1")
    assert "is not on the disk" not in last_words(stage, "n1")
    assert stage.state() is State.LEFT


def test_the_write_at_a_planned_end_is_tried_again_after_a_pause_though_the_next_round_runs() -> None:
    stage = running_job(NODES, THREE)
    stage.play("keep n1 n2 n3 1:100 of=3 protected=yes", "advance 600s")
    write(stage, *NODES)
    stage.play("keep n1 n2 n3 1:100 1:200 of=3 protected=yes")
    stage.play("ask restart default", "stopped n1 n2 n3", "running n1 n2 n3", "keep n1 n2 n3 1:200 of=3 protected=yes")
    stage.play("advance 1s")
    assert writers(stage) == dict.fromkeys(NODES, 200)
    stage.play("write n1 failed why=full", f"advance {RETRY_S - 1:g}s")
    assert writers(stage) == {}
    stage.play("advance 1s")
    assert writers(stage) == dict.fromkeys(NODES, 200)


def test_writers_hear_which_attempts_were_aborted() -> None:
    stage = ending(shards=3)
    for _ in range(2):
        stage.play("write n2 failed why=full", f"advance {RETRY_S:g}s")
    assert [asked and (asked.attempt, asked.aborted) for asked in (order(stage, "n1"), order(stage, "n2"))] == [
        (3, (1, 2)),
        (3, (1, 2)),
    ]
    stage.play("write n1 n2 n3 written", "write n1 failed why=full", f"advance {RETRY_S:g}s")
    assert (asked := order(stage, "n1")) is not None
    assert (asked.attempt, asked.aborted) == (4, (1, 2)), "the third one was to be made whole, and perhaps was"


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_run_does_not_wait_to_hear_a_node_that_was_released_before_a_restart(restarts: int) -> None:
    stage = running_job(NODES, f"min=2 max=3 restarts={restarts}")
    stage.play("fail n1", "failed n1", "stopped n2", "ask drain n2", "die 1s", "reconnect n1 n3", "stopped n3")
    stage.play("advance 30s")  # the lease of n2, whose workers may still run for all that the records say
    assert stage.state() is (State.STARTING if restarts else State.FAILED)


@pytest.mark.parametrize("restart", [("ask drain n2", "die 1s"), ("die 1s", "ask drain n2")], ids=["before", "after"])
def test_a_node_that_succeeded_and_is_drained_stays_until_a_restarted_coordinator_hears_it(
    restart: tuple[str, str],
) -> None:
    stage = running_job(NODES, THREE)
    stage.play("keep n1 n2 n3 1:100 of=3 shards=3", "succeed n1 n2 n3", *restart, "reconnect n1", "reconnect n3")
    assert stage.desired("n1").goal is Goal.STOP
    stage.play("reconnect n2")
    assert writers(stage) == {"n1": 100, "n2": 100, "n3": 100}


def test_a_run_that_succeeded_ends_without_a_drained_node_that_does_not_come_back() -> None:
    stage = running_job(NODES, THREE)
    stage.play("keep n1 n2 n3 1:100 of=3 shards=3", "succeed n1 n2 n3", "ask drain n2", "die 1s", "reconnect n1 n3")
    stage.play("advance 30s")
    assert stage.state() is State.SUCCEEDED


@pytest.mark.parametrize(("end", "state"), [("succeed n1 n3", State.SUCCEEDED), (FAIL, State.FAILED)])
def test_a_run_does_not_wait_to_hear_a_node_that_was_released_after_a_restart(end: str, state: State) -> None:
    stage = running_job(NODES, THREE)
    stage.play("succeed n2", "die 1s", "ask drain n2", "reconnect n1", "reconnect n3", "advance 20s", end)
    stage.play("stopped n1 n3" if end == FAIL else "advance 1s", "advance 130s")
    assert stage.state() is state


def end_of(stage: Stage, asked_at: float) -> float:
    """Return when a coordinator that was asked to end at this time may do so."""
    return may_end_at(stage.coordinator.registry.runs.values(), asked_at)


def may_end(stage: Stage, asked_at: float) -> bool:
    """Return whether it may do so now."""
    return end_of(stage, asked_at) <= stage.now


def test_a_drained_node_that_a_restarted_coordinator_hears_first_waits_until_the_last_step_is_on_the_disk() -> None:
    stage = ending(shards=1)
    stage.play(*(f"ask drain {node}" for node in NODES), "die 1s", "reconnect n1")
    assert stage.desired("n1").goal is Goal.WAIT
    stage.play("reconnect n2", "reconnect n3")
    assert writers(stage) == {"n1": 100, "n2": 100, "n3": 100}


def test_a_coordinator_that_is_asked_to_end_stays_until_the_last_step_is_on_the_disk() -> None:
    stage = ending(shards=3)
    assert not may_end(stage, stage.now)
    stage.play("write n1 n2 n3 written")
    assert not may_end(stage, stage.now), "nobody has made the step whole"
    stage.play("write n1 committed")
    assert stage.state() is State.LEFT
    assert not may_end(stage, stage.now), "the nodes may not have received that yet"
    stage.play("drop n1 n2 n3")
    assert may_end(stage, stage.now)


@pytest.mark.parametrize("end", [STOP, FAIL, "ask restart default", "leave n1"])
def test_a_coordinator_that_is_asked_to_end_stays_while_workers_end(end: str) -> None:
    stage = running_job(NODES, "min=3 max=3 restarts=3")
    asked_at = stage.now
    assert may_end(stage, asked_at), "they just train"
    stage.play(end)
    assert not may_end(stage, asked_at)


def test_a_coordinator_that_is_asked_to_end_stays_no_longer_than_nodes_may() -> None:
    stage = ending(shards=3)
    asked_at = stage.now
    until = end_of(stage, asked_at)
    assert until == asked_at + max(puppet.join.offer.stop_timeout_s for puppet in stage.puppets.values()) + END_S


def test_nodes_that_write_kept_state_have_a_moment_to_say_that_they_leave_as_well() -> None:
    stage = running_job(NODES, THREE)
    asked_at = stage.now
    assert end_of(stage, asked_at) == asked_at + SIGNALS_APART_S
    stage.play("advance 1s")
    assert may_end(stage, asked_at)
    stage.play("leave n1")
    assert not may_end(stage, asked_at)


def test_a_coordinator_that_is_asked_to_end_waits_for_no_node_that_is_not_there() -> None:
    stage = ending(shards=3)
    stage.play("drop n1 n2 n3")
    assert may_end(stage, stage.now)


def test_a_write_that_was_over_while_the_round_ended_does_not_keep_the_last_step_from_the_disk() -> None:
    stage = running_job(NODES, "min=2 max=3 keeps=5s")
    stage.play("keep n1 n2 n3 1:100 of=3 shards=3 protected=yes", "advance 6s")
    assert writers(stage) == dict.fromkeys(NODES, 100)
    stage.play(*(f"write {node} written" for node in NODES))
    (committer,) = [node for node in NODES if (asked := order(stage, node)) is not None and asked.commit]
    stage.play("leave n3", f"write {committer} committed", "keep n1 n2 n3 1:100 1:150 of=3 shards=3 protected=yes")
    stage.play("stopped n1 n2 n3")
    assert writers(stage) == dict.fromkeys(NODES, 150)


@pytest.mark.parametrize("failed", [("n2",), ("n2", "n3")], ids="-".join)
@pytest.mark.parametrize("end", [LEAVE, STOP])
def test_who_fails_to_write_while_workers_end_is_not_asked_again_if_others_can_write(
    end: str, failed: tuple[str, ...]
) -> None:
    stage = running_job(NODES, "min=3 max=3 keeps=5s")
    stage.play("keep n1 n2 n3 1:100 of=3 shards=1 protected=yes", "advance 6s")
    assert writers(stage) == dict.fromkeys(NODES, 100)
    stage.play(end, *(f"write {node} failed why=full" for node in failed), "stopped n1 n2 n3")
    assert writers(stage) == dict.fromkeys(sorted({*NODES} - {*failed}), 100)


def test_a_job_that_succeeds_says_what_it_waits_for() -> None:
    stage = ending(shards=3, end=SUCCEED)
    waits = "all workers succeeded; step 100 is written to the disk first"
    assert (stage.desired("n1").reason, stage.desired("n1").wait_s) == (waits, END_S)
    stage.play("write n2 failed why=full", "advance 20s")
    waits += "; the last write failed: node n2: full"
    assert (stage.desired("n1").reason, stage.desired("n1").wait_s) == (waits, END_S - 20.0)
    waits += " (for at most 1 min 40 s)"
    assert stage.view().reason == waits
    assert f"nothing: job default is ending already: {waits}" in "\n".join(stage.play("ask stop default"))
    refused = "refused: job default is ending (all workers succeeded): start its nodes again"
    assert refused in "\n".join(stage.play("ask restart default"))
    stage.play("advance 10s")
    write(stage, *NODES)
    assert stage.run.durable.outcome == Outcome(Result.SUCCEEDED, 0, "all workers succeeded; step 100 is on the disk")
    assert "start its nodes again, and it goes on from step 100 on the disk" in stage.play("ask restart default")[-1]


@pytest.mark.parametrize("end", [STOP, FAIL, SUCCEED])
def test_an_operator_who_does_not_want_to_wait_for_the_disk_ends_the_job_at_once(end: str) -> None:
    stage = ending(shards=3, end=end)
    assert stage.state() is WAITS[end]
    stage.play("ask stop default no_persist=yes")
    assert stage.state() is (State.STOPPED if end == STOP else ENDS[end])
    assert "; step 100 is not on the disk: stopped with --no-persist by alice" in last_words(stage, "n1")


def test_a_job_that_trains_is_not_ended_by_who_does_not_want_to_wait_for_the_disk() -> None:
    stage = running_job(NODES, THREE)
    answer = "".join(stage.play("ask stop default no_persist=yes"))
    assert "refused: job default does not wait for the disk now: all workers are started" in answer
    assert stage.state() is State.RUNNING


def test_a_node_that_comes_while_a_succeeded_job_writes_is_told_that_it_came_late() -> None:
    """It exits with 0, since the job has succeeded: a scheduler may have started its host late."""
    stage = running_job(NODES, "min=3 max=3 keeps=600s")
    stage.play("keep n1 n2 n3 1:100 of=3 protected=yes")
    stage.play("succeed n1 n2 n3", "advance 1s", "join n4 min=3 max=3 keeps=600s")
    assert stage.desired("n4").goal is Goal.WAIT
    write(stage, *NODES)
    ended = "all workers succeeded; step 100 is on the disk"
    assert stage.desired("n4").outcome == Outcome(
        Result.SUCCEEDED, 0, f"{ended}; this node came after that and ran no worker"
    )


@pytest.mark.parametrize(
    "setting", [pytest.param("", id="without --persist"), pytest.param("keeps=600s", id="on the disk already")]
)
def test_a_job_succeeds_at_once_if_there_is_nothing_to_write(setting: str) -> None:
    stage = running_job(NODES, f"min=3 max=3 {setting}")
    stage.play("keep n1 n2 n3 1:100 of=3 protected=yes", "advance 600s")
    if setting:
        write(stage, *NODES)
    stage.play("succeed n1 n2", "advance 100s")
    assert stage.state() is State.RUNNING
    stage.play("succeed n3")
    assert stage.state() is State.SUCCEEDED
    assert stage.records(RoundStopped) == []


def test_a_job_that_succeeds_says_which_of_its_steps_were_not_kept() -> None:
    stage = running_job(NODES, "min=3 max=3 keeps=600s")
    stage.play("keep n1 n2 n3 1:100 of=3 protected=yes", "advance 600s")
    write(stage, *NODES)
    stage.play("step n1 n2 n3 103", "succeed n1 n2 n3")
    assert stage.run.durable.reason == "all workers succeeded; step 100 is on the disk, and no later one up to 103"


def test_a_job_that_ends_before_a_round_does_a_step_says_which_of_its_steps_were_not_kept() -> None:
    stage = running_job(NODES, "min=3 max=3 keeps=600s restarts=1")
    stage.play("keep n1 n2 n3 1:100 of=3 protected=yes", "advance 600s")
    write(stage, *NODES)
    stage.play("step n1 n2 n3 103", "fail n1", "stopped n1 n2 n3", "advance 10s", "running n1 n2 n3")
    stage.play("leave n1 n2 n3", "stopped n1 n2 n3", "advance 200s")
    assert (stage.run.durable.round, stage.run.durable.reached, stage.state()) == (2, 103, State.LEFT)
    assert stage.run.durable.reason.endswith("; step 100 is on the disk, and no later one up to 103")


def test_nodes_without_a_disk_succeed_at_once_after_a_restart_of_the_coordinator() -> None:
    stage = running_job(NODES, "min=3 max=3")
    stage.play("succeed n1 n2", "die 1s", "reconnect n3", "succeed n3")
    assert stage.state() is State.SUCCEEDED


@pytest.mark.parametrize("gone", ["leave n2", "ask drain n2", "ask stop default"])
def test_who_is_asked_to_leave_a_job_that_has_succeeded_has_succeeded(gone: str) -> None:
    stage = ending(shards=3, end=SUCCEED)
    stage.play(gone)
    assert (stage.state(), writers(stage)) == (State.STOPPING, dict.fromkeys(NODES, 100))
    write(stage, *NODES)
    assert stage.desired("n2").outcome == stage.desired("n1").outcome == stage.run.durable.outcome
    assert stage.state() is State.SUCCEEDED


def test_the_last_step_in_the_status_is_no_older_than_the_one_on_the_disk() -> None:
    stage = running_job(("n1", "n2"), "min=2 max=2 keeps=600s restarts=0")
    stage.play("step n1 n2 90", "advance 1s", "step n1 100", "drop n2", "advance 2s")
    stage.play("keep n1 1:100", "stopped n1", "ask stop default")
    stage.play("write n1 written", "write n1 committed")
    view = stage.view()
    assert view.state is State.STOPPED
    assert view.reason.endswith("; step 100 is on the disk")
    assert view.progress.step == 100, "the node that was lost had reported step 90 last"
