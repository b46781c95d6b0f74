"""Retention changes nothing: the rest of a history leads to the same state, and it does not grow."""

from dataclasses import replace
from functools import partial

import pytest

from coordinatord.core.rounds.state.durable import DurableRun
from coordinatord.core.rounds.values.records import (
    HostJudged,
    NodeDrained,
    NodeJoined,
    NodeUndrained,
    RoundEnded,
    RoundFormed,
    RunOpened,
    TrainingResumed,
    TrainingStalled,
)
from coordinatord.core.rounds.values.round_history import ROUNDS_RETAINED
from coordinatord.core.rounds.values.time_ledger import Spent
from coordinatord.store import retention
from coordinatord.store.database import Database
from coordinatord.store.interface import Entry
from coordinatord.store.retention import CLUSTER_RECORDS_RETAINED, RUNS_RETAINED, VISITORS_RETAINED
from tests.support.histories import (
    JOB,
    RUN,
    Life,
    a_forgetting,
    a_join_of,
    a_loss_of,
    a_round_of,
    a_start_of,
    an_opening,
    made_at,
    replay,
)


@pytest.fixture
def database() -> Database:
    return Database.in_memory()


def kinds(entries: list[Entry]) -> list[str]:
    return [entry.record.KIND for entry in entries]


def going_on(entries: list[Entry]) -> DurableRun:
    """Return what a history leads to, but for nodes that were let go: the store forgets them with their rounds."""
    return replace(replay(entries)[JOB], released={})


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 8))])
def test_what_is_left_of_a_long_history_leads_to_the_same_state_at_every_moment(seed: int, database: Database) -> None:
    whole: list[Entry] = []
    for entry in Life(seed, rounds=ROUNDS_RETAINED + 20):
        database.append([entry])
        whole.append(entry)
        if isinstance(entry.record, RoundFormed | RoundEnded) and entry.record.round > ROUNDS_RETAINED:
            assert going_on(database.load()) == going_on(whole)
    assert database.count() < len(whole)


def test_the_last_rounds_are_kept_whole(database: Database) -> None:
    for entry in Life(7, rounds=ROUNDS_RETAINED + 20):
        database.append([entry])
    kept = [entry.record for entry in database.load()]
    rounds = [record.round for record in kept if isinstance(record, RoundFormed)]
    assert rounds == list(range(rounds[-1] - ROUNDS_RETAINED + 1, rounds[-1] + 1))
    ends = [record.round for record in kept if isinstance(record, RoundEnded)]
    assert ends == [rounds[0] - 1, *rounds]


def test_nodes_that_come_and_go_while_a_round_is_on_do_not_pile_up(database: Database) -> None:
    database.append(
        made_at(0.0, an_opening(), a_join_of("n1"), a_join_of("n2"), a_round_of("n1", "n2"), a_loss_of("n2"))
    )
    for number in range(3 * VISITORS_RETAINED):
        database.append(made_at(1.0, a_join_of(f"visitor-{number}")))
        database.append(made_at(1.0, a_loss_of(f"visitor-{number}")))
    assert database.count() == 5 + 2 * VISITORS_RETAINED
    run = replay(database.load())[JOB]
    assert (list(run.order), list(run.members)) == (["n1", "n2"], ["n1"])


def test_a_node_that_comes_and_goes_under_one_name_does_not_pile_up(database: Database) -> None:
    database.append(made_at(0.0, an_opening()))
    for number in range(3 * VISITORS_RETAINED):
        database.append(made_at(1.0, a_join_of("n1", incarnation=number), a_loss_of("n1", incarnation=number)))
    database.append(made_at(2.0, a_join_of("n1", incarnation=0)))
    assert database.count() == 1 + 2 * VISITORS_RETAINED + 1
    assert list(replay(database.load())[JOB].members) == ["n1"]


def test_what_nodes_remember_of_rounds_is_not_forgotten_before_the_first_round(database: Database) -> None:
    database.append(made_at(0.0, an_opening(), a_join_of("old", remembered=7), a_loss_of("old")))
    for number in range(2 * VISITORS_RETAINED):
        database.append(made_at(1.0, a_join_of(f"visitor-{number}"), a_loss_of(f"visitor-{number}")))
    assert replay(database.load())[JOB].round == 7


def test_the_last_runs_of_a_job_are_kept(database: Database) -> None:
    for number in range(RUNS_RETAINED + 2):
        run = f"e-{number}"
        database.append(made_at(float(number), an_opening(run=run), a_join_of("n1", run=run)))
    kept = [f"e-{number}" for number in range(2, RUNS_RETAINED + 2)]
    assert database.runs() == [(JOB, run) for run in kept]
    loaded = [entry.record for entry in database.load()]
    assert [record.run for record in loaded if isinstance(record, NodeJoined)] == [kept[-1]]
    assert [record.run for record in loaded if isinstance(record, RunOpened)] == kept
    assert kinds(database.history(JOB, kept[0])) == ["RunOpened", "NodeJoined"]


def test_of_a_forgotten_job_nothing_is_left_but_that_and_others_stay(database: Database) -> None:
    database.append(made_at(0.0, an_opening(), a_join_of("n1")))
    database.append(made_at(1.0, an_opening("other"), a_join_of("n1", "other")))
    database.append(made_at(2.0, a_forgetting(), an_opening("third")))
    assert [entry.record.job for entry in database.load()] == ["other", "other", JOB, "third"]
    assert database.runs() == [("other", RUN), ("third", RUN)]


def test_a_job_that_comes_again_within_one_commit_begins_anew(database: Database) -> None:
    database.append(made_at(0.0, an_opening(), a_join_of("n1")))
    database.append(made_at(1.0, a_forgetting(), an_opening(run="e-2"), a_join_of("n2", run="e-2")))
    [forgotten, _, joined] = [entry.record for entry in database.load()]
    assert forgotten == a_forgetting(), "its nodes must not begin it anew"
    assert isinstance(joined, NodeJoined)
    assert (joined.run, joined.node) == ("e-2", "n2")


def test_stalls_of_a_round_that_lasts_do_not_pile_up(database: Database) -> None:
    database.append(made_at(0.0, an_opening(), a_join_of("n1"), a_round_of("n1"), a_start_of()))
    before = database.count()
    for number in range(3 * retention.REPEATED_RETAINED):
        spent = Spent(training=number, stalled=number)
        for kind in (TrainingStalled, TrainingResumed):
            database.append(made_at(float(number), kind("job", "e-1", "r", 1, spent)))
    assert database.count() == before + 2 * retention.REPEATED_RETAINED
    run = replay(database.load())["job"]
    assert run.ledger.settled == Spent(training=number, stalled=number)


def a_drain(name: str) -> NodeDrained:
    return NodeDrained("", "", f"{name} drained by alice", name)


def an_undrain(name: str) -> NodeUndrained:
    return NodeUndrained("", "", f"{name} undrained by alice", name)


def test_forgotten_jobs_do_not_pile_up(database: Database) -> None:
    for number in range(CLUSTER_RECORDS_RETAINED + 20):
        job = f"job-{number}"
        database.append(made_at(0.0, an_opening(job), a_forgetting(job)))
    assert database.count() == CLUSTER_RECORDS_RETAINED


def test_drains_that_hold_are_kept_and_others_do_not_pile_up(database: Database) -> None:
    database.append(
        made_at(0.0, a_drain("bad"), a_drain("mended"), an_undrain("mended"), a_drain("again"), an_undrain("again"))
    )
    database.append(made_at(0.0, a_drain("again")))
    for number in range(CLUSTER_RECORDS_RETAINED):
        database.append(made_at(1.0, a_drain(f"n{number}"), an_undrain(f"n{number}")))
    drained = [entry.record for entry in database.load() if isinstance(entry.record, NodeDrained)]
    left = [record.node for record in drained]
    assert left[:2] == ["bad", "again"]
    assert "mended" not in left
    assert database.count() == CLUSTER_RECORDS_RETAINED + 2


def test_the_last_judgement_of_a_host_is_kept_and_earlier_ones_do_not_pile_up(database: Database) -> None:
    database.append(made_at(0.0, HostJudged("", "", "charged", "lemon"), HostJudged("", "", "quarantined", "lemon")))
    for number in range(CLUSTER_RECORDS_RETAINED):
        database.append(made_at(1.0, HostJudged("", "", f"charged {number}", "other")))
    kept = [entry.record.reason for entry in database.load() if isinstance(entry.record, HostJudged)]
    assert kept[0] == "quarantined"
    assert len(kept) == CLUSTER_RECORDS_RETAINED + 1


def test_a_host_with_the_longest_name_can_be_judged(database: Database) -> None:
    database.append(made_at(0.0, HostJudged("", "", "charged", "h" * 253)))  # the limit of `NodeOffer.host`
    assert database.count() == len([*database.load()]) == 1


def test_a_mark_more_costs_no_more_the_more_there_are(database: Database) -> None:
    costs = []
    for half in range(2):
        steps: list[None] = []
        database.append(made_at(0.0, *(a_drain(f"n{half}-{number}") for number in range(2 * CLUSTER_RECORDS_RETAINED))))
        database._connection.set_progress_handler(partial(steps.append, None), 10)
        database.append(made_at(1.0, a_drain(f"one-more-{half}")))
        database._connection.set_progress_handler(None, 0)
        costs.append(len(steps))
    assert 0 < costs[0] <= costs[1] < 1.2 * costs[0]
