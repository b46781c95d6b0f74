"""What a coordinator has recorded: it starts again on it, and knows of nodes that were lost and runs that are over."""

import pytest

from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.queries.reasons import situation
from coordinatord.core.rounds.state.durable import EARLIER_MAX, LOST_MAX, LOST_ROUNDS, State
from coordinatord.core.rounds.transitions.apply import HistoryError
from coordinatord.core.rounds.values.records import (
    NodeJoined,
    NodeLeftBehind,
    NodeLost,
    NodeReleased,
    NodesSilent,
    Record,
    RoundEnded,
    RunEnded,
    RunOpened,
)
from coordinatord.core.rounds.values.round_history import ROUNDS_RETAINED
from coordinatord.core.shown.job_view import LOST_SHOWN_S
from coordinatord.protocol.messages import Goal, Outcome, Result
from coordinatord.store import retention
from coordinatord.store.database import Database
from coordinatord.store.interface import Entry
from tests.support import ledgers
from tests.support.builders import a_spec
from tests.support.histories import a_join_of, a_loss_of, an_opening, replay
from tests.support.script import Stage, play

JOB = "min=2 max=2 restarts=2"
PAIR = (f"join n1 n2 {JOB}", "running n1 n2")

AWAY = "die 100s"
"""Nobody coordinates for so long."""

OF_ANOTHER = RunOpened("another", "e-9", "opened by node x", "x", a_spec(2, 2))
"""A record that shows for how long the coordinator has lived."""


def advance(stage: Stage, seconds: float) -> list[Record]:
    """Let time pass; return the records."""
    before = len(stage.past)
    stage.play(f"advance {seconds}s")
    return [record for _, record in stage.past[before:]]


def the_end(stage: Stage) -> RoundEnded:
    """Return the record of the only round that has ended."""
    [ended] = stage.records(RoundEnded)
    return ended


def test_a_run_of_which_nobody_comes_back_stands_until_its_nodes_have_given_up_and_is_then_over() -> None:
    stage = play(*PAIR, AWAY)
    policy, offer = stage.coordinator.policy, stage.run.members["n1"].offer
    stands_s = policy.restart_grace_s + policy.outage_grace_s + offer.stop_timeout_s + offer.join_timeout_s
    assert [type(record) for record in advance(stage, stands_s - 0.1)] == [NodesSilent]
    assert [type(record) for record in advance(stage, 0.2)] == [RunEnded]


def test_a_run_of_which_nobody_comes_back_is_said_to_be_unheard_since_the_start_and_to_end_then() -> None:
    stage = play(*PAIR, AWAY, "advance 90s")
    since = "not heard since this coordinator was started 90 s ago: they may have ended meanwhile"
    assert situation(stage.run, stage.now) == f"{since}; the job is given up in 4 min 55 s"
    answer = stage.play("ask stop default")[-1]
    assert answer.endswith("job default is over: no node of it is heard, and one that comes back ends its workers")


@pytest.mark.parametrize("others_live", [False, True])
def test_the_coordinators_network_is_only_suspected_while_no_node_of_any_job_is_heard(others_live: bool) -> None:
    stage = play(*PAIR, *(["join n9 job=other"] if others_live else []), "drop n1 n2", "advance 2s")
    why = "they may have ended, or their own network is cut, since nodes of other jobs are heard"
    why = why if others_live else "the coordinator's own network may be cut"
    workers = "workers stop in 4 min 58 s"
    assert (
        situation(stage.run, stage.now) == f"every node is silent: {why}; {workers}; the job is given up in 6 min 9 s"
    )


@pytest.mark.parametrize("culprit", ["reconnect n1 phase=failed age=100s", "advance 0s"], ids=["back", "gone"])
def test_a_failure_that_stopped_the_round_is_charged_by_the_next_life(culprit: str) -> None:
    stage = play(*PAIR, "fail n1 exit=3", AWAY, culprit, "reconnect n2 phase=stopped", "advance 20s")
    assert (the_end(stage).charged, the_end(stage).restarts_used) == (True, 1)
    assert "exit code 3" in the_end(stage).reason


def test_the_end_of_a_run_without_a_round_is_no_older_than_what_its_nodes_know() -> None:
    stage = play("join n1 min=2 max=2 run=lost round=7", "ask stop default")
    before = stage.desired("n1")
    stage.play(AWAY, "reconnect n1 run=e-1")
    assert before.round == stage.desired("n1").round == 7, "a node ignores a message of an earlier round"


def test_a_node_that_was_let_go_receives_that_from_the_next_life() -> None:
    stage = play(f"join n1 {JOB}", "leave n1", AWAY, "reconnect n1")
    assert stage.desired("n1").goal is Goal.EXIT


def test_survivors_that_come_back_to_a_forming_round_do_not_wait_for_a_settle_window() -> None:
    stage = play("join n1 n2 min=1 max=3", "advance 2s", "running n1 n2", settle_s=2.0)
    stage.play("fail n1", "stopped n2", "failed n1")
    last = next(index for index, (_, record) in enumerate(stage.past) if isinstance(record, RoundEnded))
    stage.past = stage.past[: last + 1]  # killed before the next round was recorded
    stage.play(AWAY)
    assert stage.state() is State.FORMING
    stage.play("reconnect n1")
    assert stage.state() is State.FORMING, "the other may come back yet"
    stage.play("reconnect n2")
    assert (stage.state(), stage.run.durable.round) == (State.STARTING, 2)


def test_a_stall_right_after_the_start_condemns_nobody_and_forgives_no_more_than_itself() -> None:
    stage = play(*PAIR, AWAY)
    before, grace_s = len(stage.past), stage.coordinator.policy.restart_grace_s
    stage.play(f"stall {grace_s + 3}s", "reconnect n1")
    assert stage.past[before:] == []
    lost = [record.node for record in advance(stage, grace_s + 4) if isinstance(record, NodeLost)]
    assert lost == ["n2"]


def test_a_short_trouble_with_the_store_after_a_start_takes_no_time_from_those_that_are_not_back() -> None:
    stage = play(*PAIR, AWAY, "reconnect n1", "trouble 2s")
    grace_s = stage.coordinator.policy.restart_grace_s
    assert advance(stage, grace_s - 2.1) == []
    assert [record.node for record in advance(stage, 0.2) if isinstance(record, NodeLost)] == ["n2"]


def test_a_round_that_was_being_stopped_has_its_whole_time_after_a_start() -> None:
    stage = play(*PAIR, "fail n1")
    overdue_s = stage.run.evidence.stop_overdue_at - stage.now
    stage.now += overdue_s - 1.0  # the disk failed until then, so that nodes heard of the stop no earlier
    stage.past.append((stage.now, OF_ANOTHER))
    stage.play(AWAY)
    assert stage.run.evidence.stop_overdue_at - stage.now == overdue_s


def test_after_a_start_nobody_is_left_behind_before_it_could_be_back() -> None:
    stage = play(*PAIR, "fail n1")
    stage.now = stage.run.evidence.stop_overdue_at - 1.0
    stage.past.append((stage.now, OF_ANOTHER))
    stage.play("die 1.5s")
    early = advance(stage, stage.coordinator.policy.restart_grace_s - 0.1)
    assert not any(isinstance(record, NodeLost | NodeLeftBehind) for record in early)
    stage.play("reconnect n1 phase=failed age=60s", "reconnect n2 phase=stopped")
    assert the_end(stage).charged


def test_a_run_that_was_empty_once_is_over_when_its_last_node_leaves() -> None:
    stage = play("join n1 min=1 max=1", "running n1", "drop n1", "join n1 min=1 max=1 incarnation=2", "running n1")
    assert stage.run.durable.round == 2
    stage.play("leave n1", "stopped n1")
    assert stage.state() is State.LEFT


def test_a_run_that_lost_all_its_nodes_waits_for_them_anew() -> None:
    stage = play(*PAIR, "drop n2", "advance 1s", "stopped n1", "drop n1", "advance 2s")
    assert not stage.run.members
    stage.play(AWAY)
    gone_s = stage.coordinator.policy.outage_grace_s + stage.run.durable.stop_timeout_s
    assert advance(stage, gone_s - 1.0) == []
    assert [type(record) for record in advance(stage, 3.0)] == [RunEnded]


def test_a_node_that_left_and_came_again_is_one_member_in_any_life() -> None:
    stage = play(f"join n2 n1 {JOB}", "running n1 n2", f"join n3 {JOB}", "leave n3", "drop n3")
    stage.play(f"join n3 {JOB} incarnation=2")
    for lines in ((), (AWAY,)):
        stage.play(*lines)
        roll = stage.run.roll
        assert (roll.workers, roll.unreleased, sorted(stage.run.members)) == (3, 3, ["n1", "n2", "n3"])


def test_a_younger_nodeclient_in_the_place_of_one_that_was_let_go_is_no_loss() -> None:
    stage = play(f"join n1 n2 n3 {JOB}", "leave n3")
    before = len(stage.past)
    stage.play(f"join n3 {JOB} incarnation=2")
    assert [type(record) for _, record in stage.past[before:]] == [NodeJoined]


def test_records_that_do_not_fit_each_other_are_refused() -> None:
    lost = NodeLost("default", "e-1", "silent", "n9", 1, 0.0, leaving=False)
    released = NodeReleased("default", "e-1", "left", "n9", 1, Outcome(Result.LEFT, 143, "left"))
    for record in (lost, released):
        with pytest.raises(HistoryError, match="run e-1 of job default knows no node 'n9'"):
            Coordinator(Policy(), "f").restore([*play(*PAIR).past, (0.0, record)], 1.0)
    with pytest.raises(HistoryError, match="is not its current run"):
        Coordinator(Policy(), "f").restore([(0.0, lost)], 1.0)


def set_back(stage: Stage) -> None:
    """Start the coordinator again where all of it was only a moment ago, by the clock of this life."""
    stage.past = [(stage.now + 100.0, record) for _, record in stage.past]
    stage.play(AWAY)


def test_what_failed_in_a_planned_stop_is_free_even_if_the_clock_was_set_back_while_nobody_coordinated() -> None:
    stage = play(*PAIR, "leave n1")
    assert stage.state() is State.STOPPING
    set_back(stage)
    stage.play("reconnect n1 phase=stopped", "reconnect n2", "fail n2 age=100s", "stopped n2")
    assert not the_end(stage).charged


def test_whether_a_process_ran_when_the_job_succeeded_is_known_after_a_start_as_well() -> None:
    for age_s, goal in ((101, Goal.EXIT), (99, Goal.WAIT)):
        stage = play(*PAIR, "succeed n1 n2", AWAY, f"join n3 {JOB} age_s={age_s}")
        assert stage.desired("n3").goal is goal


def test_an_end_that_lies_ahead_of_a_clock_that_was_set_back_may_be_long_ago() -> None:
    stage = play(*PAIR, "succeed n1 n2")
    set_back(stage)
    stage.play(f"join n3 {JOB} age_s=30")
    assert stage.desired("n3").goal is Goal.WAIT, "it had waited for this coordinator, perhaps"


# What stays known of losses and of earlier runs


def lost(stage: Stage) -> list[tuple[str, int, float]]:
    """Return node, round and age of each loss that is shown."""
    return [(node.node, node.round, node.lost_s) for node in stage.view().lost]


def test_a_lost_node_is_listed_until_it_is_back() -> None:
    stage = play(ledgers.PAIR, "silence n2", "advance 65s")
    [gone] = stage.view().lost
    assert (gone.node, gone.host, gone.round, gone.lost_s) == ("n2", "host-n2", 1, 60.0)
    assert gone.reason == "silent for its whole lease"
    assert [node.node for node in stage.view().nodes] == ["n1"]
    stage.play("join n2 min=2 max=2 incarnation=2")
    assert lost(stage) == []


def test_the_last_loss_comes_first_and_a_node_once() -> None:
    trio = [f"join n{number} min=1 max=3" for number in (1, 2, 3)]
    stage = play(*trio, "drop n2", "advance 2s", "join n2 min=1 max=3 incarnation=2", "drop n3", "advance 2s")
    stage.play("drop n2", "advance 2s")
    assert [node for node, *_ in lost(stage)] == ["n2", "n3"]


def test_a_loss_is_listed_for_an_hour_and_outlives_the_coordinator() -> None:
    stage = play("join n1 min=2 max=2 join_timeout_s=80000", "join n2 min=2 max=2", "drop n2", "advance 11s")
    stage.play("die 5s", "reconnect n1")
    assert lost(stage) == [("n2", 1, 15.0)]
    stage.play(f"advance {LOST_SHOWN_S - 16}s")
    assert len(lost(stage)) == 1
    stage.play("advance 2s")
    assert lost(stage) == []


def test_losses_are_bounded_and_the_store_keeps_as_many() -> None:
    database, whole = Database.in_memory(), [Entry(0.0, an_opening()), Entry(0.0, a_join_of("n0"))]
    for number in range(1, 3 * LOST_MAX):
        whole += [Entry(float(number), record) for record in (a_join_of(f"n{number}"), a_loss_of(f"n{number}"))]
    database.append(whole)
    kept, all_ = replay(database.load())["job"].lost, replay(whole)["job"].lost
    assert kept == all_
    assert [loss.node for loss in kept] == [f"n{number}" for number in range(2 * LOST_MAX, 3 * LOST_MAX)]
    assert LOST_MAX < retention.VISITORS_RETAINED
    assert LOST_ROUNDS < ROUNDS_RETAINED


def test_earlier_runs_are_kept_with_their_last_step() -> None:
    stage = play(ledgers.PAIR, "step n1 0", "advance 5s", "step n1 n2 50", "succeed n1 n2", "advance 10s")
    assert stage.view().earlier == ()
    stage.play("join n1 n2 min=2 max=2 incarnation=2")
    [earlier] = stage.view().earlier
    assert (earlier.run, earlier.state, earlier.reason, earlier.step) == (
        "e-1",
        "succeeded",
        "all workers succeeded",
        50,
    )
    assert (earlier.opened_s, earlier.ended_s, earlier.exit_code) == (9.0, 10.0, 0)
    assert earlier.goodput == pytest.approx(5 / 9)
    stage.play("die 5s")
    [again] = stage.view().earlier
    assert (again.run, again.step, again.ended_s) == ("e-1", 50, 15.0)


def test_as_many_runs_are_kept_as_the_store_has() -> None:
    stage = Stage()
    for number in range(1, 6):
        stage.play(f"join n1 min=1 max=2 incarnation={number}", "leave n1", "drop n1", "advance 3s")
    assert [run.run for run in stage.view().earlier] == ["e-4", "e-3"]
    assert {run.state for run in stage.view().earlier} == {"left"}
    database = Database.in_memory()
    for at, record in stage.past:
        database.append([Entry(at, record)])
    assert replay(database.load())["default"] == stage.run.durable
    assert EARLIER_MAX + 1 == retention.RUNS_RETAINED


def test_to_forget_a_job_forgets_its_earlier_runs() -> None:
    stage = play(ledgers.PAIR, "succeed n1 n2", "drop n1 n2", "ask forget default")
    stage.play("join n1 min=2 max=2 incarnation=2")
    assert stage.view().earlier == ()
