"""Which nodes may take over a job's name, and when a run is over because nobody is left."""

import pytest
from msgspec import structs

from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.effects import Batch, Refuse, Send
from coordinatord.core.rounds.events import Connected, Disconnected
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.values.records import RunOpened
from coordinatord.protocol.fields import RANKS_MAX, WORKERS_MAX
from coordinatord.protocol.messages import Goal, Outcome, RefusalCode, Result
from tests.support.builders import a_coordinator, a_join, a_spec, an_offer, let_pass
from tests.support.script import Stage, play

PAIR = ("join n1 n2 min=2 max=2", "running n1 n2")
OTHER = "min=1 max=8 restarts=0"
"""Settings that are not those of the pair."""


def openings(stage: Stage) -> list[str]:
    """Return why each run was opened."""
    return [record.reason for record in stage.records(RunOpened)]


def test_a_join_of_a_spare_that_was_on_its_way_beyond_the_end_of_the_job_begins_nothing() -> None:
    stage = play(*PAIR, "advance 1s", "join n3 min=2 max=2 age_s=1", "advance 8s", "succeed n1 n2", "advance 2s")
    before = len(stage.past)
    stage.play("join n3 min=2 max=2 age_s=1.5")
    assert (stage.past[before:], stage.desired("n3").goal) == ([], Goal.EXIT)


# Other settings


def test_one_of_the_gone_nodes_may_itself_come_back_with_other_settings() -> None:
    stage = play(*PAIR, "drop n1 n2", "advance 1.5s")
    run = stage.run
    stage.play(f"join n1 {OTHER} incarnation=2")
    assert run.members == {}
    assert list(stage.run.members) == ["n1"]


def test_nodes_that_are_only_silent_keep_their_run() -> None:
    stage = play(*PAIR, "silence n1 n2", "advance 4.5s", "drop n1", "advance 0.5s")
    run = stage.run
    assert run.roll.all_silent
    [refused] = stage.play("advance 0.5s", f"join n3 {OTHER}")[-1:]
    assert "(spec_differs)" in refused
    assert (stage.run, stage.state()) == (run, State.RUNNING)


# The last node


# What a waiting node receives


def wait_sent(stage: Stage, node: str) -> float | None:
    """Return how long the node is to wait."""
    desired = stage.desired(node)
    assert desired.goal is Goal.WAIT
    return desired.wait_s


def test_while_there_are_too_few_nodes_the_wait_is_the_join_timeout() -> None:
    assert wait_sent(play("join n1 min=2 max=4 join_timeout_s=60"), "n1") == 60.0


def test_when_there_are_enough_the_wait_is_the_rest_of_the_settle_window() -> None:
    stage = play("join n1 min=1 max=3", settle_s=2.0, heartbeat_s=0.25)
    assert wait_sent(stage, "n1") == 2.0
    stage.play("advance 0.5s")
    assert wait_sent(stage, "n1") == 1.5
    stage.play("advance 0.5s", "join n2 min=1 max=3")
    assert wait_sent(stage, "n2") == 2.0
    stage.play("advance 0.25s")
    assert wait_sent(stage, "n1") == 1.75


def test_a_join_timeout_that_ends_within_the_settle_window_is_what_is_sent() -> None:
    assert wait_sent(play("join n1 min=1 max=3 join_timeout_s=0.5", settle_s=2.0), "n1") == 0.5


# The size of a run


def connect(coordinator: Coordinator, session: int, node: str, workers: int) -> Batch:
    join = a_join(node, spec=a_spec(1000, 1000), offer=an_offer(node, workers=workers))
    return coordinator.handle(Connected(session, join, f"10.0.0.{session}", "10.0.0.254"), 0.0)


@pytest.fixture(scope="module")
def nearly_full() -> Coordinator:
    """Return a run that waits for many nodes, with room for one more, but not for the most workers of a node."""
    coordinator = a_coordinator()
    for number in range(1, RANKS_MAX // WORKERS_MAX + 1):
        assert connect(coordinator, number, f"n{number}", WORKERS_MAX).records
    return coordinator


LEFT = RANKS_MAX % WORKERS_MAX


def test_a_node_that_would_make_the_run_larger_than_ranks_can_count_is_refused_for_now(
    nearly_full: Coordinator,
) -> None:
    [refuse] = connect(nearly_full, 900, "last", LEFT + 1).effects
    assert isinstance(refuse, Refuse)
    assert (refuse.message.code, refuse.message.retry) == (RefusalCode.LIMIT, True)
    assert str(RANKS_MAX) in refuse.message.message


def test_a_member_is_not_counted_twice_when_it_comes_back_or_is_replaced(nearly_full: Coordinator) -> None:
    join = a_join("n1", spec=a_spec(1000, 1000), offer=an_offer("n1", workers=WORKERS_MAX))
    for session, incarnation in ((901, 1), (902, 2)):
        younger = structs.replace(join, incarnation=incarnation)
        batch = nearly_full.handle(Connected(session, younger, "10.0.0.1", "10.0.0.254"), 0.0)
        assert session in [effect.session for effect in batch.effects if isinstance(effect, Send)]


def test_a_run_may_be_as_large_as_ranks_can_count(nearly_full: Coordinator) -> None:
    connect(nearly_full, 903, "last", LEFT)
    assert nearly_full.jobs["default"].roll.workers == RANKS_MAX
    nearly_full.handle(Disconnected(903), 0.0)
    let_pass(nearly_full, 1.0)
    assert nearly_full.jobs["default"].roll.workers == RANKS_MAX - LEFT


# The end of a run

ENDED = (*PAIR, "advance 100s", "succeed n1 n2", "drop n1 n2", "advance 12s")


def test_a_process_that_ran_when_the_job_succeeded_hears_of_that_and_trains_nothing() -> None:
    stage = play(*ENDED)
    before = len(stage.past)
    stage.play("join n3 min=2 max=2 age_s=30")
    assert stage.past[before:] == []
    assert (stage.desired("n3").goal, stage.desired("n3").outcome) == (
        Goal.EXIT,
        Outcome(
            Result.SUCCEEDED, 0, "job default succeeded 12 s before this node came (run e-1): all workers succeeded"
        ),
    )
    stage.play("drop n3")
    assert stage.run.members == {}


@pytest.mark.parametrize("age", ["age_s=11.5", "age_s=0", ""], ids=["started after it", "just started", "of no age"])
def test_a_process_that_was_started_after_the_end_begins_another_run_and_is_warned(age: str) -> None:
    stage = play(*ENDED, f"join n3 min=2 max=2 {age}")
    remark = "job default succeeded 12 s ago (run e-1); this begins run e-2"
    assert openings(stage)[1:] == [f"opened by node n3; {remark}"]
    assert (stage.desired("n3").goal, stage.desired("n3").remark) == (Goal.WAIT, remark)


def test_after_an_end_for_want_of_nodes_whoever_comes_begins_another_run_without_a_word() -> None:
    stage = play(*PAIR, "advance 100s", "leave n1 n2", "stopped n1 n2")
    durable = stage.run.durable
    assert (durable.state.ended, durable.concluded) == (True, False)
    stage.play("join n3 min=2 max=2 age_s=30")
    assert openings(stage)[1:] == ["opened by node n3"]


def test_a_process_with_other_settings_begins_another_run() -> None:
    assert len(openings(play(*ENDED, f"join n3 {OTHER} age_s=30"))) == 2
