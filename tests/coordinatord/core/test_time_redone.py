"""Time that is no goodput although a round goes on: work that is done again, and the silence of all nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinatord.core.state.durable import State
from tests.support.ledgers import PAIR, ledger, play, run_of, shown

# The silence of all nodes


def test_but_nobody_has_trained_for_sure_since_all_fell_silent() -> None:
    stage = play(PAIR, "advance 6s", "silence n1 n2", "advance 90s", "ask stop default", "advance 1s")
    seconds = ledger(stage)
    assert (seconds["running"], seconds["silent"]) == (6.0, 90.0)


def test_nor_does_a_newcomer_prove_that_nodes_which_fell_silent_have_trained() -> None:
    trio = [f"join n{number} min=2 max=3" for number in (1, 2)]
    stage = play(*trio, "advance 2s", "running n1 n2", "advance 6s", "silence n1 n2", "advance 90s")
    stage.play("join n3 min=2 max=3")
    assert run_of(stage).durable.reason == "node n3 arrived"
    assert ledger(stage) == {"rendezvous": 2.0, "running": 6.0, "silent": 90.0}


def test_a_run_that_ends_as_it_has_not_been_heard_of_was_silent_to_its_end() -> None:
    stage = play(PAIR, "advance 6s", "silence n1 n2", "advance 400s")
    assert run_of(stage).durable.state is State.FAILED
    assert ledger(stage) == {"waiting": 3.0, "starting": 1.0, "running": 6.0, "silent": 375.0}


def test_what_nodes_that_come_back_did_in_their_silence_nobody_knows() -> None:
    stage = play(PAIR, "advance 6s", "silence n1 n2", "advance 90s", "heal n1 n2", "advance 10s")
    assert ledger(stage) == {"waiting": 3.0, "starting": 1.0, "running": 16.0, "silent": 90.0}
    stage = play(PAIR, "step n1 0", "advance 6s", "silence n1 n2", "advance 90s", "step n1 960", "advance 10s")
    assert ledger(stage) == {"waiting": 3.0, "starting": 1.0, "training": 16.0, "silent": 90.0}
    stage.play("heal n2")
    assert ledger(stage)["silent"] == 90.0
    stage = play(PAIR, "advance 1s", "announce n1 n2", "silence n1 n2", "advance 90s", "step n1 9", "advance 10s")
    assert ledger(stage) == {"waiting": 3.0, "starting": 2.0, "training": 10.0, "silent": 90.0}


def test_a_coordinator_that_is_started_again_has_heard_no_node_by_that() -> None:
    stage = play(PAIR, "advance 6s", "silence n1 n2", "advance 60s", "die 5s", "advance 25s")
    assert shown(stage).health == "silent"
    assert ledger(stage) == {"waiting": 3.0, "starting": 1.0, "running": 6.0, "silent": 90.0}
    stage.play("reconnect n1 n2")
    stage.play("advance 10s")
    assert ledger(stage) == {"waiting": 3.0, "starting": 1.0, "running": 16.0, "silent": 90.0}


def test_a_worker_that_failed_within_a_silence_broke_the_round_then() -> None:
    stage = play(PAIR, "advance 6s", "silence n1 n2", "advance 90s", "fail n1 age=20s", "advance 1s")
    seconds = ledger(stage)
    assert (seconds["silent"], seconds["detecting"]) == (70.0, 20.0)


def test_nodes_that_come_back_and_had_ended_their_workers_broke_the_round_by_that() -> None:
    stage = play(PAIR, "advance 6s", "silence n1 n2", "advance 24s")
    puppet = stage.puppets["n1"]
    puppet.observed = replace(puppet.observed, idle_s=4.0)
    stage.play("stopped n1")
    assert run_of(stage).durable.state is State.STOPPING
    assert ledger(stage) == {"waiting": 3.0, "starting": 1.0, "running": 6.0, "silent": 20.0, "detecting": 4.0}


# Work that is done again


REDO = """
    step n1 0
    advance 8s
    step n1 100
    fail n1
    stopped n1 n2
    running n1 n2
    advance 2s
"""
"""A first round of eight seconds ends at step 100, and a second one begins."""


def test_steps_that_an_earlier_round_had_done_are_redone_and_no_goodput() -> None:
    stage = play(PAIR, REDO, "step n1 60")
    assert shown(stage).progress.reached == 100
    stage.play("advance 3s")
    stage.play("step n1 90")
    assert ledger(stage) == {"waiting": 3.0, "starting": 3.0, "training": 8.0, "redone": 3.0}
    assert shown(stage).ledger.goodput == pytest.approx(8 / 17)
    stage.play("advance 2s")
    stage.play("step n1 110")
    assert ledger(stage) == {"waiting": 3.0, "starting": 3.0, "training": 9.0, "redone": 4.0}, "worked out in between"
    assert stage.past[-1][1].reason == "step 100 is reached again"
    stage.play("advance 5s")
    assert ledger(stage) == {"waiting": 3.0, "starting": 3.0, "training": 14.0, "redone": 4.0}


@pytest.mark.parametrize("step", [100, 101, 500])
def test_a_round_that_goes_on_where_the_last_one_ended_repeats_nothing(step: int) -> None:
    stage = play(PAIR, REDO, f"step n1 {step}", "advance 3s")
    assert ledger(stage) == {"waiting": 3.0, "starting": 3.0, "training": 11.0}
    assert not run_of(stage).durable.repeats_steps


def test_the_step_itself_that_was_reached_counts_when_it_is_done_again() -> None:
    stage = play(PAIR, REDO, "step n1 90", "advance 3s", "step n1 100", "advance 1s")
    assert ledger(stage) == {"waiting": 3.0, "starting": 3.0, "training": 9.0, "redone": 3.0}


def test_any_earlier_round_counts_and_not_only_the_last_one() -> None:
    again = ("step n1 60", "advance 1s", "step n1 70", "fail n1", "stopped n1 n2", "running n1 n2", "advance 2s")
    stage = play(PAIR, REDO, *again, "step n1 80", "advance 2s")
    assert ledger(stage) == {"waiting": 3.0, "starting": 5.0, "training": 8.0, "redone": 3.0}
    assert shown(stage).progress.reached == 100


def test_the_furthest_worker_of_a_round_says_how_far_it_came() -> None:
    stage = play(PAIR, "step n1 90", "step n2 100", "advance 1s", "silence n2", "advance 6s", "stopped n1")
    assert run_of(stage).durable.reached == 90, "n2 was lost with what only it had done"
    stage = play(PAIR, "step n1 90", "step n2 100", "fail n1", "stopped n1 n2")
    assert run_of(stage).durable.reached == 100


def test_a_script_that_counts_anew_within_a_round_redoes_nothing_any_more() -> None:
    stage = play(PAIR, REDO, "step n1 60", "advance 3s", "step n1 90", "advance 2s", "step n1 5", "advance 4s")
    assert ledger(stage) == {"waiting": 3.0, "starting": 3.0, "training": 12.0, "redone": 5.0}


def test_a_node_that_reports_later_and_less_is_no_script_that_counts_anew() -> None:
    stage = play(PAIR, REDO, "step n2 70", "advance 1s", "step n1 65", "advance 2s")
    assert ledger(stage) == {"waiting": 3.0, "starting": 3.0, "training": 8.0, "redone": 3.0}


def test_work_that_is_done_again_may_stall_and_stays_redone_after_it() -> None:
    stage = play(PAIR, REDO, "step n1 60", "advance 1s", "step n1 61", "advance 89s")
    assert shown(stage).health == "stalled"
    stage.play("advance 1s")
    stage.play("step n1 62")
    seconds = ledger(stage)
    assert (shown(stage).health, seconds["stalled"], seconds["redone"]) == ("well", 90.0, 1.0)
    stage.play("advance 2s")
    assert ledger(stage)["redone"] == 3.0


def test_what_is_redone_outlives_the_coordinator() -> None:
    stage = play(PAIR, REDO, "step n1 60", "advance 3s", "die 2s", "reconnect n1 n2", "advance 1s")
    assert ledger(stage) == {"waiting": 3.0, "starting": 3.0, "training": 8.0, "redone": 6.0}
    stage.play("step n1 120")
    stage.play("advance 4s")
    seconds = ledger(stage)
    assert (seconds["redone"], seconds["training"]) == (4.0, 14.0), "of 60 steps in 6 s, the last 20 were new"
