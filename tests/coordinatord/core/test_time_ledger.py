"""Where the time of a run goes, second by second, as a person can follow it.

The simulation's invariants have the rest.
"""

import pytest
from msgspec.structs import asdict

from coordinatord.core.machine import WINGS
from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.queries.time_attribution import spent
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.round_history import BRIEF_REASON_MAX, ROUNDS_RETAINED, rounds_of
from coordinatord.core.rounds.values.time_ledger import SPAN_MAX, Activity, Ledger, Spent
from coordinatord.core.shown.job_view import rounds_view
from coordinatord.protocol.messages import Phase
from coordinatord.store.database import Database
from coordinatord.store.interface import Entry
from tests.support.histories import Life as RandomLife
from tests.support.histories import a_join_of, a_round_of, a_start_of, a_stop_of, an_end_of, an_opening, replay
from tests.support.ledgers import PAIR, ledger
from tests.support.script import play

# The causes


START = {"waiting": 3.0, "starting": 1.0}
"""Where the time of `PAIR` goes."""

TRIO = "join n1 n2 n3 min=3 max=3\nrunning n1 n2 n3\nadvance 10s\nsilence n3"
SOON = "join n1 min=2 max=3\nadvance 4s\njoin n2 min=2 max=3\nadvance 1s"
GONE = "join n1 n2 min=2 max=3\nadvance 1s\nleave n2\nadvance 9s"
STEPS = f"{PAIR}\nadvance 6s\nstep n2 0 age=1.5s"
SLOW = f"{PAIR}\nstep n1 n2 0\nadvance 4s\nstep n1 n2 1\nadvance 4s\nstep n1 n2 2"
AGAIN = f"{PAIR}\nstep n1 0\nadvance 6s\nfail n1\nstopped n1 n2\nrunning n1 n2\nadvance 5s"

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

REPEATED = "step n1 70\nfail n1\nstopped n1 n2\nrunning n1 n2\nadvance 2s"
SILENT = f"{PAIR}\nadvance 6s\nsilence n1 n2\nadvance 90s"

CAUSES: dict[str, tuple[str, dict[str, float]]] = {
    "waits, starts and trains": (f"{PAIR}\nadvance 6s", {**START, "running": 6.0}),
    "rendezvous since there were enough, shown before the round": (SOON, {"waiting": 4.0, "rendezvous": 1.0}),
    "and in its round": (f"{SOON}\nadvance 9s", {"waiting": 4.0, "rendezvous": 2.0, "starting": 8.0}),
    "went before the round, so waited in vain": (GONE, {"waiting": 10.0}),
    "another one came": (
        f"{GONE}\njoin n3 min=2 max=3\nadvance 5s",
        {"waiting": 10.0, "rendezvous": 2.0, "starting": 3.0},
    ),
    "ended before a round": ("join n1 min=1 max=3\nadvance 1s\nleave n1\nadvance 9s", {"waiting": 1.0}),
    "the lease of a dead node": (
        f"{PAIR}\nadvance 6s\nsilence n2\nadvance 30s",
        {**START, "running": 6.0, "detecting": 5.0, "stopping": 25.0},
    ),
    "a closed connection": (
        f"{PAIR}\nadvance 6.5s\ndrop n2\nadvance 2s",
        {**START, "running": 6.5, "detecting": 1.0, "stopping": 1.0},
    ),
    "a failure since it was": (
        f"{PAIR}\nadvance 6s\nfail n2 age=2s\nadvance 3s",
        {**START, "running": 4.0, "detecting": 2.0, "stopping": 3.0},
    ),
    "a failure before the lease is over": (
        f"{TRIO}\nadvance 4.5s\nfail n1 age=1s",
        {"running": 13.5, "detecting": 1.0},
    ),
    "a closed connection before a failure, judged once": (
        f"{TRIO}\ndrop n2\nadvance 0.5s\nfail n1 age=1s\nadvance 3s",
        {"running": 9.5, "detecting": 1.0, "stopping": 3.0},
    ),
    "no sign reaches back beyond what is settled": (
        f"{PAIR}\nadvance 1s\nfail n2 age=900s",
        {**START, "detecting": 1.0},
    ),
    "breaks while it starts": ("join n1 min=1 max=1\nadvance 8s\nfail n1 age=3s", {"starting": 5.0, "detecting": 3.0}),
    "a stop on purpose needs no detecting": (
        "join n1 min=1 max=2\nadvance 2s\nrunning n1\nadvance 5s\njoin n2 min=1 max=2\nadvance 4s",
        {"rendezvous": 2.0, "running": 5.0, "stopping": 4.0},
    ),
    "nor does it train who was silent when nothing could be recorded": (
        f"{PAIR}\nadvance 6s\nsilence n2\ntrouble 60s\nask restart default",
        {**START, "running": 6.0, "detecting": 60.0},
    ),
    "succeeds": (f"{PAIR}\nadvance 6s\nsucceed n1\nadvance 2s\nsucceed n2\nadvance 5s", {**START, "running": 8.0}),
    "trains since the first step": (STEPS, {"waiting": 3.0, "starting": 5.5, "training": 1.5}),
    "and goes on": (f"{STEPS}\nadvance 4s\nstep n1 10", {"waiting": 3.0, "starting": 5.5, "training": 5.5}),
    "a step older than the round": (f"{PAIR}\nadvance 6s\nstep n2 0 age=900s", {**START, "training": 6.0}),
    "starts again until it does steps again": (AGAIN, {"waiting": 3.0, "starting": 6.0, "training": 6.0}),
    "fails before that": (
        f"{AGAIN}\nfail n1 age=1s",
        {"waiting": 3.0, "starting": 5.0, "training": 6.0, "detecting": 1.0},
    ),
    "does steps again": (f"{AGAIN}\nstep n1 1 age=2s", {"waiting": 3.0, "starting": 4.0, "training": 8.0}),
    "announced steps": (f"{PAIR}\nadvance 2s\nannounce n2\nadvance 4s", {"waiting": 3.0, "starting": 7.0}),
    "announced steps that come": (
        f"{PAIR}\nadvance 2s\nannounce n2\nadvance 4s\nstep n2 0 age=1s",
        {"waiting": 3.0, "starting": 6.0, "training": 1.0},
    ),
    "never came to its first step": (
        f"{PAIR}\nannounce n1\nadvance 6s\nfail n1\nstopped n1 n2\nrunning n1 n2\nadvance 2s",
        {"waiting": 3.0, "starting": 7.0, "running": 2.0},
    ),
    "succeeds without the steps that were to come": (
        f"{PAIR}\nannounce n1\nadvance 6s\nsucceed n1 n2",
        {**START, "running": 6.0},
    ),
    "announced to the next coordinator again": (
        f"{PAIR}\nannounce n1 n2\nadvance 6s\ndie 2s\nreconnect n1 n2\nadvance 1s",
        {"waiting": 3.0, "starting": 10.0},
    ),
    "a node that went without a coordinator trained until that was back": (
        f"{PAIR}\nadvance 6s\ndie 30s\nreconnect n1\nadvance 15s",
        {**START, "running": 36.0, "detecting": 15.0},
    ),
    "unless a peer's worker shows it": (
        f"{PAIR}\nadvance 6s\ndie 30s\nreconnect n1\nfail n1 age=20s",
        {**START, "running": 16.0, "detecting": 20.0},
    ),
    "its first step and its failure are heard of together": (
        f"{PAIR}\nadvance 1s\ndie 30s\nstep n1 3 age=29s\nfail n1 age=20s\nreconnect n1",
        {"waiting": 3.0, "starting": 3.0, "training": 9.0, "detecting": 20.0},
    ),
    "stands, and ends before that is called a stall": (
        f"{SLOW}\nadvance 20s\nfail n1 age=1s\nadvance 1s",
        {**START, "training": 8.0, "stalled": 19.0, "detecting": 1.0, "stopping": 1.0},
    ),
    "stands, and an operator ends it before that is called a stall": (
        f"{SLOW}\nadvance 20s\nask restart default",
        {**START, "training": 8.0, "stalled": 20.0},
    ),
    "a step that is cut off was no stall, if others took as long": (
        f"{SLOW}\nadvance 15s\nstep n1 n2 3\nadvance 12s\nfail n1",
        {**START, "training": 35.0},
    ),
    "stands for a moment before its node is gone, and that is what it stands for": (
        f"{PAIR}\nstep n1 n2 0\nadvance 2s\nstep n1 n2 1\nadvance 2s\nsilence n2\nadvance 12s",
        {**START, "training": 4.0, "detecting": 5.0, "stopping": 7.0},
    ),
    "nor one of less than ten seconds": (f"{SLOW}\nadvance 9s\nfail n1", {**START, "training": 17.0}),
    "nor a section": (
        f"{SLOW}\nsection n1 eval limit=100s\nadvance 20s\nfail n1",
        {**START, "training": 28.0},
    ),
    "steps outlive the coordinator": (
        f"{PAIR}\nstep n1 0\nadvance 6s\ndie 2s\nreconnect n1 n2\nstep n1 20\nadvance 1s",
        {**START, "training": 9.0},
    ),
    "and so does that they are to come again": (
        f"{AGAIN}\ndie 5s\nreconnect n1 n2\nadvance 1s",
        {"waiting": 3.0, "starting": 12.0, "training": 6.0},
    ),
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
        f"{PAIR}\n{REDO}\nstep n1 60\nadvance 1s\n{REPEATED}\nstep n1 80\nadvance 2s",
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
def test_each_second_goes_to_its_cause(script: str, expected: dict[str, float]) -> None:
    assert ledger(play(script)) == expected


def test_goodput_is_known_once_a_run_has_trained() -> None:
    assert play("join n1 min=2 max=2").view().ledger.goodput is None, "no time has passed"
    assert play(CAUSES["announced steps"][0]).view().ledger.goodput is None
    assert play(CAUSES["announced steps that come"][0]).view().ledger.goodput == 0.1


def test_a_run_that_is_over_has_no_round_in_which_steps_were_reported() -> None:
    stage = play(PAIR, "step n1 0", "advance 1s", "succeed n1 n2")
    durable = stage.run.durable
    assert not durable.reports_steps, "of such a run not all records are read again"
    assert not durable.stepped


def test_that_steps_are_to_come_is_not_believed_for_ever() -> None:
    stage = play(PAIR, "announce n1 n2", "advance 599s")
    assert (stage.view().state, ledger(stage)) == ("starting", {"waiting": 3.0, "starting": 600.0})
    stage.play("advance 101s")
    view = stage.view()
    assert (view.state, view.ledger.goodput) == ("running", None)
    assert ledger(stage) == {"waiting": 3.0, "starting": 601.0, "running": 100.0}
    text = "no step yet, and all workers were started 11 min ago: "
    assert view.reason == f"{text}if the script never calls ctx.step, let it call workerlib.init(steps=False)"
    assert [record.KIND for _, record in stage.past].count("FirstStepOverdue") == 1
    stage.play("step n1 0")
    assert ledger(stage) == {"waiting": 3.0, "starting": 701.0}, "it was starting all that time"
    assert "no step yet" not in stage.view().reason


def test_that_the_first_step_is_overdue_outlives_the_coordinator_and_not_the_round() -> None:
    stage = play(PAIR, "announce n1 n2", "advance 610s", "die 2s", "reconnect n1 n2", "advance 1s")
    assert stage.view().state == "running"
    assert ledger(stage) == {"waiting": 3.0, "starting": 601.0, "running": 13.0}
    stage.play("fail n1", "stopped n1 n2", "running n1 n2", "announce n1 n2", "advance 1s")
    assert stage.view().state == "starting"
    assert ledger(stage)["starting"] == 602.0


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
    assert ledger(stage) == {**START, "running": 6.0, "silent": 90.0}
    stage.play("reconnect n1 n2", "advance 10s")
    assert ledger(stage) == {**START, "running": 16.0, "silent": 90.0}


def test_nodes_that_come_back_and_had_ended_their_workers_broke_the_round_by_that() -> None:
    stage = play(PAIR, "advance 6s", "silence n1 n2", "advance 24s")
    stage.report("n1", phase=Phase.STOPPED, idle_s=4.0)
    assert stage.state() is State.STOPPING
    assert ledger(stage) == {**START, "running": 6.0, "silent": 20.0, "detecting": 4.0}


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


# Rounds


def test_the_timeline_has_each_round_and_what_its_time_went_to() -> None:
    stage = play(PAIR, "advance 6s", "fail n1 age=1s", "advance 2s", "stopped n1 n2", "advance 1s")
    view = rounds_view(stage.run, stage.run.durable.rounds, stage.now)
    first, second = view
    assert first.formed == "formed of nodes n1, n2, all that --nnodes allows"
    assert first.stopped == first.ended == "rank 0 on node n1 failed: exit code 1"
    plain = {
        name: value for name, value in asdict(first).items() if name not in {"formed", "stopped", "ended", "seconds"}
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
    took = {**START, "running": 5.0, "detecting": 1.0, "stopping": 2.0}
    went = dict.fromkeys(Activity, 0.0) | took
    assert asdict(first.seconds) == went
    assert (second.round, second.formed_s, second.running_s, second.ended) == (2, 1.0, None, None)
    assert asdict(second.seconds) == dict.fromkeys(went, 0.0) | {"starting": 1.0}


def test_the_rounds_of_a_run_that_is_over_grow_older_and_not_longer() -> None:
    stage = play(PAIR, "advance 6s", "succeed n1 n2", "advance 50s")
    assert not list(stage.run.durable.rounds), "they are left to the store"
    [round_] = rounds_view(stage.run, rounds_of(record for _, record in stage.past), stage.now)
    assert (round_.formed_s, round_.running_s, round_.stopped, round_.stopped_s, round_.ended_s) == (
        57.0,
        56.0,
        None,
        None,
        50.0,
    )
    assert round_.ended == "all workers succeeded"
    assert sum(asdict(round_.seconds).values()) == 10.0


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
    run = Run(replay(Entry(0.0, record) for record in past)["job"], Policy(), WINGS)
    [round_] = rounds_view(run, run.durable.rounds, 0.0)
    assert round_.stopped == round_.ended == "x" * (BRIEF_REASON_MAX - 3) + "..."


# What lasts


def test_a_pruned_store_gives_the_same_ledger_the_same_rounds_and_the_same_losses() -> None:
    database, whole = Database.in_memory(), []
    for entry in RandomLife(5, rounds=ROUNDS_RETAINED + 15):
        database.append([entry])
        whole.append(entry)
    assert database.count() < len(whole)
    pruned, unpruned = (Run(replay(entries)["job"], Policy(), WINGS) for entries in (database.load(), whole))
    now = whole[-1].at + 7.0
    assert spent(pruned, now) == spent(unpruned, now)
    assert spent(pruned, now).total == pytest.approx(now - whole[0].at)
    assert pruned.durable.rounds == unpruned.durable.rounds
    assert pruned.durable.lost == unpruned.durable.lost != []
    assert len(list(pruned.durable.rounds)) == ROUNDS_RETAINED
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
    assert stage.state() is state
    before, rounds = spent(stage.run, stage.now), list(stage.run.durable.rounds)
    activity = stage.run.durable.ledger.activity
    stage.play("die 30s")
    after = spent(stage.run, stage.now)
    assert after == (before if activity is None else before.plus(activity, 30.0))
    assert list(stage.run.durable.rounds) == rounds


def test_a_clock_that_is_set_back_takes_nothing_away() -> None:
    book, activity = Ledger(100.0), Activity.WAITING
    assert book.divide(90.0, (activity, 90.0)) == Spent()
    book, activity = Ledger(105.0, Spent(waiting=5.0), Activity.STARTING), Activity.STARTING
    assert book.divide(50.0, (activity, 50.0)) == Spent(waiting=5.0)
    assert book.divide(50.0, (activity, 10.0), (Activity.DETECTING, 50.0)) == Spent(waiting=5.0)
    assert book.divide(110.0, (activity, 200.0), (Activity.DETECTING, 110.0)) == Spent(waiting=5.0, starting=5.0)


def test_no_clock_however_wrong_makes_a_number_that_cannot_be_recorded() -> None:
    assert Ledger(0.0).divide(1e11, (Activity.WAITING, 1e11)) == Spent(waiting=SPAN_MAX)
