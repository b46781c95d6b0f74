"""Where the time of a run goes, second by second, as a person can follow it.

The simulation's invariants have the rest.
"""

from __future__ import annotations

import pytest

from coordinatord.core.policy import Policy
from coordinatord.core.queries.job_view import rounds_view
from coordinatord.core.queries.time_attribution import spent
from coordinatord.core.state.durable import State
from coordinatord.core.state.run import Run
from coordinatord.core.values.round_history import REASON_MAX, ROUNDS_KEPT, rounds_of
from coordinatord.core.values.time_ledger import SPAN_MAX, Activity, Ledger, Spent
from coordinatord.protocol.schema import fields_of
from coordinatord.store.database import Database
from coordinatord.store.interface import Entry
from tests.support.histories import Life as RandomLife
from tests.support.histories import a_join_of, a_round_of, a_start_of, a_stop_of, an_end_of, an_opening, replay
from tests.support.ledgers import PAIR, ledger, play, run_of, shown

# The causes


def test_a_run_waits_for_nodes_starts_and_trains() -> None:
    stage = play(PAIR, "advance 6s")
    assert ledger(stage) == {"waiting": 3.0, "starting": 1.0, "running": 6.0}
    view = shown(stage)
    assert (view.opened_s, view.state_s, view.ledger.goodput) == (10.0, 6.0, None)


def test_before_any_time_has_passed_there_is_no_goodput() -> None:
    view = shown(play("join n1 min=2 max=2"))
    assert (view.opened_s, view.ledger.goodput) == (0.0, None)


def test_the_time_since_there_were_enough_nodes_is_rendezvous_and_not_waiting() -> None:
    stage = play("join n1 min=2 max=3", "advance 4s", "join n2 min=2 max=3", "advance 1s")
    assert ledger(stage) == {"waiting": 4.0, "rendezvous": 1.0}, "shown before the round is there"
    stage.play("advance 9s")
    assert run_of(stage).durable.state is State.STARTING
    assert ledger(stage) == {"waiting": 4.0, "rendezvous": 2.0, "starting": 8.0}


def test_nodes_that_went_before_the_round_had_been_waited_for_in_vain() -> None:
    stage = play("join n1 min=2 max=3", "join n2 min=2 max=3", "advance 1s", "leave n2", "advance 9s")
    assert ledger(stage) == {"waiting": 10.0}
    stage.play("join n3 min=2 max=3")
    stage.play("advance 5s")
    assert ledger(stage) == {"waiting": 10.0, "rendezvous": 2.0, "starting": 3.0}


def test_a_run_that_ends_before_it_has_a_round_has_waited() -> None:
    stage = play("join n1 min=1 max=3", "advance 1s", "leave n1", "advance 9s")
    assert run_of(stage).durable.state is State.LEFT
    assert ledger(stage) == {"waiting": 1.0}, "its time ends with it"
    assert (shown(stage).opened_s, shown(stage).state_s) == (1.0, 9.0)


def test_the_time_until_a_dead_node_is_lost_is_detecting() -> None:
    stage = play(PAIR, "advance 6s", "silence n2", "advance 30s")
    assert run_of(stage).durable.state is State.STOPPING
    detecting = 5.0  # the lease
    assert ledger(stage) == {"waiting": 3.0, "starting": 1.0, "running": 6.0, "detecting": detecting, "stopping": 25.0}


def test_a_node_whose_connection_closes_lived_up_to_then() -> None:
    stage = play(PAIR, "advance 6.5s", "drop n2", "advance 2s")
    assert ledger(stage) == {"waiting": 3.0, "starting": 1.0, "running": 6.5, "detecting": 1.0, "stopping": 1.0}


def test_a_worker_s_failure_counts_from_when_it_was() -> None:
    stage = play(PAIR, "advance 6s", "fail n2 age=2s", "advance 3s")
    assert ledger(stage) == {"waiting": 3.0, "starting": 1.0, "running": 4.0, "detecting": 2.0, "stopping": 3.0}


def test_the_first_sign_counts_of_a_silent_node_and_a_failure() -> None:
    trio = [f"join n{number} min=3 max=3" for number in (1, 2, 3)]
    stage = play(*trio, "running n1 n2 n3", "advance 10s", "silence n3", "advance 4.5s", "fail n1 age=1s")
    assert ledger(stage) == {"running": 13.5, "detecting": 1.0}, "it has its lease still"
    stage = play(*trio, "running n1 n2 n3", "advance 10s", "silence n3", "drop n2", "advance 0.5s", "fail n1 age=1s")
    assert ledger(stage) == {"running": 9.5, "detecting": 1.0}
    stage.play("advance 3s")
    assert ledger(stage) == {"running": 9.5, "detecting": 1.0, "stopping": 3.0}, "judged once"


def test_no_sign_reaches_back_beyond_what_is_settled() -> None:
    stage = play(PAIR, "advance 1s", "fail n2 age=900s")
    assert ledger(stage) == {"waiting": 3.0, "starting": 1.0, "detecting": 1.0}


def test_a_round_may_break_while_it_starts() -> None:
    stage = play("join n1 min=1 max=1", "advance 8s", "fail n1 age=3s")
    assert ledger(stage) == {"starting": 5.0, "detecting": 3.0}


def test_a_stop_on_purpose_needs_no_detecting() -> None:
    stage = play("join n1 min=1 max=2", "advance 2s", "running n1", "advance 5s", "join n2 min=1 max=2", "advance 4s")
    assert run_of(stage).durable.state is State.STOPPING
    assert ledger(stage) == {"rendezvous": 2.0, "running": 5.0, "stopping": 4.0}


def test_nor_has_a_node_that_is_silent_since_before_nothing_could_be_recorded() -> None:
    stage = play(PAIR, "advance 6s", "silence n2", "trouble 60s", "ask restart default")
    assert ledger(stage) == {"waiting": 3.0, "starting": 1.0, "running": 6.0, "detecting": 60.0}


def test_a_run_that_succeeds_has_trained_to_the_end() -> None:
    stage = play(PAIR, "advance 6s", "succeed n1", "advance 2s", "succeed n2", "advance 5s")
    assert ledger(stage) == {"waiting": 3.0, "starting": 1.0, "running": 8.0}
    assert (shown(stage).opened_s, shown(stage).state_s) == (12.0, 5.0)


# Steps


def test_with_steps_training_begins_with_the_first_one() -> None:
    stage = play(PAIR, "advance 6s")
    stage.play("step n2 0 age=1.5s")
    assert ledger(stage) == {"waiting": 3.0, "starting": 5.5, "training": 1.5}
    stage.play("advance 4s")
    stage.play("step n1 10")
    assert ledger(stage) == {"waiting": 3.0, "starting": 5.5, "training": 5.5}


def test_a_step_that_is_older_than_the_round_takes_nothing_from_what_was_before() -> None:
    stage = play(PAIR, "advance 6s", "step n2 0 age=900s")
    assert ledger(stage) == {"waiting": 3.0, "starting": 1.0, "training": 6.0}


AGAIN = """
    fail n1
    stopped n1 n2
    running n1 n2
    advance 5s
"""


def test_a_run_that_has_reported_steps_starts_until_it_does_again() -> None:
    stage = play(PAIR, "step n1 0", "advance 6s", AGAIN)
    assert ledger(stage) == {"waiting": 3.0, "starting": 6.0, "training": 6.0}
    stage = play(PAIR, "step n1 0", "advance 6s", AGAIN, "fail n1 age=1s")
    assert ledger(stage) == {"waiting": 3.0, "starting": 5.0, "training": 6.0, "detecting": 1.0}
    stage = play(PAIR, "step n1 0", "advance 6s", AGAIN, "step n1 1 age=2s")
    assert ledger(stage) == {"waiting": 3.0, "starting": 4.0, "training": 8.0}


def test_a_run_that_is_over_has_no_round_in_which_steps_were_reported() -> None:
    stage = play(PAIR, "step n1 0", "advance 1s", "succeed n1 n2")
    durable = run_of(stage).durable
    assert not durable.reports_steps, "of such a run not all records are read again"
    assert not durable.stepped


def test_a_round_begins_to_train_once() -> None:
    stage = play(PAIR)
    stage.play("step n1 0")
    for step in range(1, 5):
        stage.play("advance 1s")
        stage.play(f"step n1 {step}")
        stage.play(f"step n2 {step}")
    kinds = [record.KIND for _, record in stage.past]
    assert kinds.count("TrainingBegan") == 1


def test_workers_that_will_report_steps_start_until_the_first_one() -> None:
    stage = play(PAIR, "advance 2s", "announce n2", "advance 4s")
    assert ledger(stage) == {"waiting": 3.0, "starting": 7.0}
    assert shown(stage).ledger.goodput is None
    stage.play("step n2 0 age=1s")
    assert ledger(stage) == {"waiting": 3.0, "starting": 6.0, "training": 1.0}
    assert shown(stage).ledger.goodput == 0.1


def test_a_round_that_never_came_to_its_first_step_has_not_trained() -> None:
    stage = play(PAIR, "announce n1", "advance 6s", "fail n1", "stopped n1 n2")
    assert ledger(stage) == {"waiting": 3.0, "starting": 7.0}
    stage.play("running n1 n2")
    stage.play("advance 2s")
    assert ledger(stage) == {"waiting": 3.0, "starting": 7.0, "running": 2.0}, "of this round nothing was said yet"


def test_a_run_that_succeeds_without_the_steps_that_were_to_come_has_run() -> None:
    stage = play(PAIR, "announce n1", "advance 6s", "succeed n1 n2")
    assert ledger(stage) == {"waiting": 3.0, "starting": 1.0, "running": 6.0}


def test_that_steps_are_to_come_is_not_believed_for_ever() -> None:
    stage = play(PAIR, "announce n1 n2", "advance 599s")
    assert (shown(stage).state, ledger(stage)) == ("starting", {"waiting": 3.0, "starting": 600.0})
    stage.play("advance 101s")
    view = shown(stage)
    assert (view.state, view.ledger.goodput) == ("running", None)
    assert ledger(stage) == {"waiting": 3.0, "starting": 601.0, "running": 100.0}
    text = "no step yet, and all workers were started more than 10 min ago: "
    assert view.reason == f"{text}if the script never calls ctx.step, let it call workerlib.init(steps=False)"
    assert [record.KIND for _, record in stage.past].count("FirstStepOverdue") == 1
    stage.play("step n1 0")
    assert ledger(stage) == {"waiting": 3.0, "starting": 701.0}, "it was starting all that time"
    assert "no step yet" not in shown(stage).reason


def test_that_the_first_step_is_overdue_outlives_the_coordinator_and_not_the_round() -> None:
    stage = play(PAIR, "announce n1 n2", "advance 610s", "die 2s", "reconnect n1 n2", "advance 1s")
    assert shown(stage).state == "running"
    assert ledger(stage) == {"waiting": 3.0, "starting": 601.0, "running": 13.0}
    for line in ("fail n1", "stopped n1 n2", "running n1 n2", "announce n1 n2", "advance 1s"):
        stage.play(line)
    assert shown(stage).state == "starting"
    assert ledger(stage)["starting"] == 602.0


def test_a_round_that_does_not_come_to_steps_as_those_before_is_starting() -> None:
    stage = play(PAIR, "step n1 0", "advance 1s", "fail n1", "stopped n1 n2", "running n1 n2", "advance 700s")
    view = shown(stage)
    assert (view.state, view.reason) == ("starting", "no step yet, and all workers were started more than 10 min ago")
    assert ledger(stage)["starting"] == 701.0


def test_that_steps_are_to_come_is_said_again_to_a_coordinator_that_comes_back() -> None:
    stage = play(PAIR, "announce n1 n2", "advance 6s", "die 2s", "reconnect n1 n2", "advance 1s")
    assert ledger(stage) == {"waiting": 3.0, "starting": 10.0}


# Rounds


def test_the_timeline_has_each_round_and_what_its_time_went_to() -> None:
    stage = play(PAIR, "advance 6s", "fail n1 age=1s", "advance 2s", "stopped n1 n2", "advance 1s")
    view = rounds_view(run_of(stage), run_of(stage).durable.rounds, stage.now)
    first, second = view
    assert first.formed == "formed of nodes n1, n2, all that --nnodes allows"
    assert first.stopped == first.ended == "rank 0 on node n1 failed: exit code 1"
    plain = {
        name: value for name, value in fields_of(first).items() if name not in {"formed", "stopped", "ended", "seconds"}
    }
    assert plain == {
        "round": 1,
        "nodes": 2,
        "workers": 2,
        "planned": False,
        "begun": None,
        "charged": True,
        "formed_s": 10.0,
        "running_s": 9.0,
        "stopped_s": 3.0,
        "ended_s": 1.0,
    }
    took = {"waiting": 3.0, "starting": 1.0, "running": 5.0, "detecting": 1.0, "stopping": 2.0}
    went = dict.fromkeys(Activity, 0.0) | took
    assert fields_of(first.seconds) == went
    assert (second.round, second.formed_s, second.running_s, second.ended) == (2, 1.0, None, None)
    assert fields_of(second.seconds) == dict.fromkeys(went, 0.0) | {"starting": 1.0}


def test_the_rounds_of_a_run_that_is_over_grow_older_and_not_longer() -> None:
    stage = play(PAIR, "advance 6s", "succeed n1 n2", "advance 50s")
    assert not list(run_of(stage).durable.rounds), "they are left to the store"
    [round_] = rounds_view(run_of(stage), rounds_of(record for _, record in stage.past), stage.now)
    assert (round_.formed_s, round_.running_s, round_.stopped, round_.stopped_s, round_.ended_s) == (
        57.0,
        56.0,
        None,
        None,
        50.0,
    )
    assert round_.ended == "all workers succeeded"
    assert sum(fields_of(round_.seconds).values()) == 10.0


def test_long_reasons_are_cut() -> None:
    reason = "x" * 4_000
    past = [
        an_opening(),
        a_join_of("n1"),
        a_round_of("n1"),
        a_start_of(),
        a_stop_of(reason=reason),
        an_end_of(reason=reason),
    ]
    run = Run(replay(Entry(0.0, record) for record in past)["job"], Policy())
    [round_] = rounds_view(run, run.durable.rounds, 0.0)
    assert round_.stopped == round_.ended == "x" * (REASON_MAX - 3) + "..."


# What lasts


def test_a_pruned_store_gives_the_same_ledger_and_the_same_rounds() -> None:
    database, whole = Database.in_memory(), []
    for entry in RandomLife(5, rounds=ROUNDS_KEPT + 15):
        database.append([entry])
        whole.append(entry)
    assert database.count() < len(whole)
    pruned, unpruned = (Run(replay(entries)["job"], Policy()) for entries in (database.load(), whole))
    now = whole[-1].at + 7.0
    assert spent(pruned, now) == spent(unpruned, now)
    assert spent(pruned, now).total == pytest.approx(now - whole[0].at)
    assert pruned.durable.rounds == unpruned.durable.rounds
    assert len(list(pruned.durable.rounds)) == ROUNDS_KEPT
    assert rounds_of(database.rounds("job", pruned.id)) == pruned.durable.rounds


BROKEN = "advance 6s\nfail n1 age=1s"
STATES = {
    State.FORMING: "join n1 min=2 max=2\nadvance 2s",
    State.STARTING: "join n1 min=1 max=1\nadvance 2s",
    State.RUNNING: f"{PAIR}\nadvance 2s",
    State.STOPPING: f"{PAIR}\n{BROKEN}\nadvance 2s",
    State.LEFT: "join n1 min=1 max=2\nadvance 1s\nleave n1\nadvance 2s",
}


@pytest.mark.parametrize("state", STATES)
def test_what_happens_goes_on_while_there_is_no_coordinator(state: State) -> None:
    stage = play(STATES[state])
    assert run_of(stage).durable.state is state
    before, rounds = spent(run_of(stage), stage.now), list(run_of(stage).durable.rounds)
    activity = run_of(stage).durable.ledger.activity
    stage.play("die 30s")
    after = spent(run_of(stage), stage.now)
    assert after == (before if activity is None else before.plus(activity, 30.0))
    assert list(run_of(stage).durable.rounds) == rounds


def test_a_node_that_went_while_there_was_no_coordinator_trained_until_that_was_back() -> None:
    stage = play(PAIR, "advance 6s", "die 30s", "reconnect n1", "advance 15s")
    assert run_of(stage).durable.state is State.STOPPING
    assert ledger(stage) == {"waiting": 3.0, "starting": 1.0, "running": 36.0, "detecting": 15.0}


def test_unless_a_peer_s_worker_shows_it() -> None:
    stage = play(PAIR, "advance 6s", "die 30s", "reconnect n1", "fail n1 age=20s")
    assert ledger(stage) == {"waiting": 3.0, "starting": 1.0, "running": 16.0, "detecting": 20.0}


def test_that_a_round_has_reported_steps_outlives_the_coordinator() -> None:
    stage = play(PAIR, "step n1 0", "advance 6s", "die 2s", "reconnect n1 n2", "step n1 20", "advance 1s")
    assert ledger(stage) == {"waiting": 3.0, "starting": 1.0, "training": 9.0}
    stage = play(PAIR, "step n1 0", AGAIN, "die 5s", "reconnect n1 n2", "advance 1s")
    assert ledger(stage) == {"waiting": 3.0, "starting": 12.0}


def test_a_clock_that_is_set_back_takes_nothing_away() -> None:
    book, activity = Ledger(100.0), Activity.WAITING
    assert book.split(90.0, activity, activity, 90.0) == Spent()
    book, activity = Ledger(105.0, Spent(waiting=5.0), Activity.STARTING), Activity.STARTING
    assert book.split(50.0, activity, activity, 50.0) == Spent(waiting=5.0)
    assert book.split(10.0, activity, Activity.DETECTING, 50.0) == Spent(waiting=5.0)
    assert book.split(200.0, activity, Activity.DETECTING, 110.0) == Spent(waiting=5.0, starting=5.0)


def test_no_clock_however_wrong_makes_a_number_that_cannot_be_recorded() -> None:
    assert Ledger(0.0).split(1e11, Activity.WAITING, Activity.WAITING, 1e11) == Spent(waiting=SPAN_MAX)
