"""What stays known of nodes that were lost and of runs that are over, also after a restart of the coordinator."""

import pytest

from coordinatord.core.rounds.state.durable import EARLIER_MAX, LOST_MAX, LOST_ROUNDS
from coordinatord.core.rounds.values.round_history import ROUNDS_RETAINED
from coordinatord.core.shown.job_view import LOST_SHOWN_S
from coordinatord.store import retention
from coordinatord.store.database import Database
from coordinatord.store.interface import Entry
from tests.support.histories import JOB, a_join_of, a_loss_of, an_opening, replay
from tests.support.ledgers import PAIR
from tests.support.script import Stage, play


def lost(stage: Stage) -> list[tuple[str, int, float]]:
    """Return node, round and age of each loss that is shown."""
    return [(node.node, node.round, node.lost_s) for node in stage.view().lost]


def test_a_lost_node_is_listed_until_it_is_back() -> None:
    stage = play(PAIR, "silence n2", "advance 65s")
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
    kept, all_ = replay(database.load())[JOB].lost, replay(whole)[JOB].lost
    assert kept == all_
    assert [loss.node for loss in kept] == [f"n{number}" for number in range(2 * LOST_MAX, 3 * LOST_MAX)]
    assert LOST_MAX < retention.VISITORS_RETAINED
    assert LOST_ROUNDS < ROUNDS_RETAINED


def test_earlier_runs_are_kept_with_their_last_step() -> None:
    stage = play(PAIR, "step n1 0", "advance 5s", "step n1 n2 50", "succeed n1 n2", "advance 10s")
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
    stage = play(PAIR, "succeed n1 n2", "drop n1 n2", "ask forget default")
    stage.play("join n1 min=2 max=2 incarnation=2")
    assert stage.view().earlier == ()
