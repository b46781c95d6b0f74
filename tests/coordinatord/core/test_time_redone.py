"""Time that is no goodput although a round goes on: work that is done again, and the silence of all nodes."""

import pytest

from coordinatord.core.rounds.state.durable import State
from coordinatord.protocol.messages import Phase
from tests.support.ledgers import PAIR, ledger
from tests.support.script import play

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

START = {"waiting": 3.0, "starting": 1.0}
"""Where the time of `PAIR` goes."""

AGAIN = "step n1 70\nfail n1\nstopped n1 n2\nrunning n1 n2\nadvance 2s"
SILENT = f"{PAIR}\nadvance 6s\nsilence n1 n2\nadvance 90s"

CAUSES: dict[str, tuple[str, dict[str, float]]] = {
    "nobody has trained for sure since all fell silent": (
        f"{SILENT}\nask stop default\nadvance 1s",
        {**START, "running": 6.0, "silent": 90.0},
    ),
    "silent to its end": (f"{SILENT}\nadvance 310s", {**START, "running": 6.0, "silent": 375.0}),
    "nobody knows what nodes did that are back": (
        f"{SILENT}\nheal n1 n2\nadvance 10s",
        {**START, "running": 16.0, "silent": 90.0},
    ),
    "nor does a step show it": (
        f"{PAIR}\nstep n1 0\nadvance 6s\nsilence n1 n2\nadvance 90s\nstep n1 960\nadvance 10s\nheal n2",
        {**START, "training": 16.0, "silent": 90.0},
    ),
    "nor the first step": (
        f"{PAIR}\nadvance 1s\nannounce n1 n2\nsilence n1 n2\nadvance 90s\nstep n1 9\nadvance 10s",
        {"waiting": 3.0, "starting": 2.0, "training": 10.0, "silent": 90.0},
    ),
    "a worker that failed within a silence": (
        f"{SILENT}\nfail n1 age=20s\nadvance 1s",
        {**START, "running": 6.0, "silent": 70.0, "detecting": 20.0, "stopping": 1.0},
    ),
    "the step itself that was reached": (
        f"{PAIR}\n{REDO}\nstep n1 90\nadvance 3s\nstep n1 100\nadvance 1s",
        {"waiting": 3.0, "starting": 3.0, "training": 9.0, "redone": 3.0},
    ),
    "any earlier round and not only the last one": (
        f"{PAIR}\n{REDO}\nstep n1 60\nadvance 1s\n{AGAIN}\nstep n1 80\nadvance 2s",
        {"waiting": 3.0, "starting": 5.0, "training": 8.0, "redone": 3.0},
    ),
    "a script that counts anew": (
        f"{PAIR}\n{REDO}\nstep n1 60\nadvance 3s\nstep n1 90\nadvance 2s\nstep n1 5\nadvance 4s",
        {"waiting": 3.0, "starting": 3.0, "training": 12.0, "redone": 5.0},
    ),
    "a node that reports later and less does not count anew": (
        f"{PAIR}\n{REDO}\nstep n2 70\nadvance 1s\nstep n1 65\nadvance 2s",
        {"waiting": 3.0, "starting": 3.0, "training": 8.0, "redone": 3.0},
    ),
    "outlives the coordinator": (
        f"{PAIR}\n{REDO}\nstep n1 60\nadvance 3s\ndie 2s\nreconnect n1 n2\nadvance 1s",
        {"waiting": 3.0, "starting": 3.0, "training": 8.0, "redone": 6.0},
    ),
    "and ends with the step that was reached: of 60 steps in 6 s the last 20 were new": (
        f"{PAIR}\n{REDO}\nstep n1 60\nadvance 3s\ndie 2s\nreconnect n1 n2\nadvance 1s\nstep n1 120\nadvance 4s",
        {"waiting": 3.0, "starting": 3.0, "training": 14.0, "redone": 4.0},
    ),
}
"""What happens to a run, and where its time goes."""


@pytest.mark.parametrize(("script", "expected"), CAUSES.values(), ids=CAUSES)
def test_what_is_silent_or_redone_is_no_training(script: str, expected: dict[str, float]) -> None:
    assert ledger(play(script)) == expected


# The silence of all nodes


def test_nor_does_a_newcomer_prove_that_nodes_which_fell_silent_have_trained() -> None:
    trio = [f"join n{number} min=2 max=3" for number in (1, 2)]
    stage = play(*trio, "advance 2s", "running n1 n2", "advance 6s", "silence n1 n2", "advance 90s")
    stage.play("join n3 min=2 max=3")
    assert stage.run.durable.reason == "node n3 arrived"
    assert ledger(stage) == {"rendezvous": 2.0, "running": 6.0, "silent": 90.0}


def test_a_coordinator_that_is_started_again_has_heard_no_node_by_that() -> None:
    stage = play(PAIR, "advance 6s", "silence n1 n2", "advance 60s", "die 5s", "advance 25s")
    assert stage.view().health == "silent"
    assert ledger(stage) == {"waiting": 3.0, "starting": 1.0, "running": 6.0, "silent": 90.0}
    stage.play("reconnect n1 n2", "advance 10s")
    assert ledger(stage) == {"waiting": 3.0, "starting": 1.0, "running": 16.0, "silent": 90.0}


def test_nodes_that_come_back_and_had_ended_their_workers_broke_the_round_by_that() -> None:
    stage = play(PAIR, "advance 6s", "silence n1 n2", "advance 24s")
    stage.report("n1", phase=Phase.STOPPED, idle_s=4.0)
    assert stage.state() is State.STOPPING
    assert ledger(stage) == {"waiting": 3.0, "starting": 1.0, "running": 6.0, "silent": 20.0, "detecting": 4.0}


# Work that is done again


@pytest.mark.parametrize("step", [100, 101, 500])
def test_a_round_that_goes_on_where_the_last_one_ended_repeats_nothing(step: int) -> None:
    stage = play(PAIR, REDO, f"step n1 {step}", "advance 3s")
    assert ledger(stage) == {"waiting": 3.0, "starting": 3.0, "training": 11.0}
    assert not stage.run.durable.repeats_steps


def test_the_furthest_worker_of_a_round_says_how_far_it_came() -> None:
    stage = play(PAIR, "step n1 90", "step n2 100", "advance 1s", "silence n2", "advance 6s", "stopped n1")
    assert stage.run.durable.reached == 100, "what a lost node has done is done again as well"
    stage = play(PAIR, "step n1 90", "step n2 100", "fail n1", "stopped n1 n2")
    assert stage.run.durable.reached == 100


def test_work_that_is_done_again_may_stall_and_stays_redone_after_it() -> None:
    stage = play(PAIR, REDO, "step n1 60", "advance 1s", "step n1 61", "advance 89s")
    assert stage.view().health == "stalled"
    stage.play("advance 1s", "step n1 62")
    seconds = ledger(stage)
    assert (stage.view().health, seconds["stalled"], seconds["redone"]) == ("well", 90.0, 1.0)
    stage.play("advance 2s")
    assert ledger(stage)["redone"] == 3.0
