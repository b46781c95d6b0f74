"""While nothing can be recorded, nothing is decided; what was known stands, and nobody is condemned for it."""

import pytest

from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.effects import Batch, Refuse, ReportDegraded, Send
from coordinatord.core.rounds.events import Connected, Disconnected, Event, Reported, StoreFailed, StoreRecovered, Tick
from coordinatord.core.rounds.state.durable import State
from coordinatord.protocol.messages import Goal, Phase, RefusalCode
from tests.support.builders import a_coordinator, a_failure, a_join, a_spec, an_observed, let_pass

TROUBLE = StoreFailed("the disk is full")


def connect(coordinator: Coordinator, session: int, node: str, now: float = 0.0, **join: object) -> Batch:
    event = Connected(session, a_join(node, spec=a_spec(2, 2), **join), f"10.0.0.{session}", "10.0.0.254")
    return coordinator.handle(event, now)


def in_trouble() -> Coordinator:
    """Return a coordinator that has a running pair, n1 and n2 in the sessions 1 and 2, and a store that fails."""
    coordinator = a_coordinator()
    for session in (1, 2):
        connect(coordinator, session, f"n{session}")
    for session in (1, 2):
        coordinator.handle(Reported(session, an_observed(run="e-1", round=1, phase=Phase.RUNNING)), 0.0)
    assert coordinator.handle(TROUBLE, 1.0) == Batch((), (), at_once=True)
    return coordinator


def beat(session: int, phase: Phase = Phase.RUNNING, **values: object) -> Reported:
    return Reported(session, an_observed(run="e-1", round=1, phase=phase, beat=True, **values))


@pytest.mark.parametrize(
    "event",
    [
        beat(1, Phase.FAILED, failure=a_failure()),
        beat(1, Phase.SUCCEEDED),
        beat(1, leaving=True),
        Disconnected(1),
        Tick(),
    ],
    ids=["a worker failed", "a node succeeded", "a node wants to leave", "a connection closed", "time passed"],
)
def test_whatever_happens_nothing_is_decided(event: Event) -> None:
    coordinator = in_trouble()
    batch = coordinator.handle(event, 100.0)
    assert batch.records == ()
    assert batch.at_once
    assert all(isinstance(effect, ReportDegraded) for effect in batch.effects)
    assert coordinator.jobs["default"].durable.state is State.RUNNING
    assert coordinator.next_deadline() is None


def test_a_node_that_is_known_may_come_back_and_others_are_turned_away_for_now() -> None:
    coordinator = in_trouble()
    observed = an_observed(run="e-1", round=1, phase=Phase.RUNNING)
    [_, held] = connect(coordinator, 3, "n1", 2.0, observed=observed).effects
    assert isinstance(held, ReportDegraded)
    for join in ({"node": "n3"}, {"node": "n2", "incarnation": 2}, {"node": "n4", "job": "other"}):
        [refuse] = connect(coordinator, 4, now=2.0, **join).effects
        assert isinstance(refuse, Refuse)
        assert (refuse.message.code, refuse.message.retry) == (RefusalCode.DEGRADED, True)
    assert list(coordinator.jobs) == ["default"]


def test_what_had_to_wait_is_decided_once_records_can_be_kept_again() -> None:
    coordinator = in_trouble()
    coordinator.handle(beat(1, Phase.FAILED, failure=a_failure()), 2.0)
    batch = coordinator.handle(StoreRecovered(), 50.0)
    sent = {effect.session: effect.message.goal for effect in batch.effects if isinstance(effect, Send)}
    assert sent == {1: Goal.STOP, 2: Goal.STOP}
    assert coordinator.jobs["default"].durable.state is State.STOPPING


def test_nodes_that_succeeded_meanwhile_have_succeeded() -> None:
    coordinator = in_trouble()
    for session in (1, 2):
        coordinator.handle(beat(session, Phase.SUCCEEDED), 2.0)
    coordinator.handle(StoreRecovered(), 50.0)
    assert coordinator.jobs["default"].durable.state is State.SUCCEEDED


def test_the_time_of_trouble_counts_against_nobody() -> None:
    coordinator = in_trouble()
    batch = coordinator.handle(StoreRecovered(), 1_000.0)
    assert batch.records == ()
    assert let_pass(coordinator, 1_004.5) == []
    coordinator.handle(beat(1), 1_004.5)
    assert let_pass(coordinator, 1_005.1), "and then whoever stays silent is lost"
    assert coordinator.jobs["default"].durable.reason == "lost node n2"


@pytest.mark.parametrize("died_at", [5.0, 1_800.0, 3_599.0])
def test_a_node_whose_cable_is_cut_meanwhile_is_lost_a_lease_after_the_trouble(died_at: float) -> None:
    coordinator = in_trouble()
    coordinator.handle(beat(2), died_at)
    coordinator.handle(beat(1), 3_600.5)
    coordinator.handle(StoreRecovered(), 3_601.0)
    assert let_pass(coordinator, 3_605.9) == []
    for now in range(3_604, 3_617, 2):  # at the latest after the longest lease, which n2 has if it was late before
        coordinator.handle(beat(1), float(now))
        let_pass(coordinator, now + 0.5)
    assert coordinator.jobs["default"].durable.reason == "lost node n2"


@pytest.mark.parametrize("died_at", [1.5, 5.0, 1_800.0])
def test_a_node_whose_connection_closes_meanwhile_has_a_second_to_come_back(died_at: float) -> None:
    coordinator = in_trouble()
    coordinator.handle(beat(2), died_at - 0.5)
    coordinator.handle(Disconnected(2), died_at)
    coordinator.handle(beat(1), 3_600.5)
    coordinator.handle(StoreRecovered(), 3_601.0)
    assert let_pass(coordinator, 3_601.9) == []
    assert let_pass(coordinator, 3_602.1)
    assert coordinator.jobs["default"].durable.reason == "lost node n2"


def test_a_node_that_begins_to_wait_meanwhile_waits_for_its_whole_time_and_no_longer() -> None:
    coordinator = a_coordinator()
    connect(coordinator, 1, "n1")
    coordinator.handle(Disconnected(1), 0.5)
    connect(coordinator, 2, "n1", 0.6)
    coordinator.handle(TROUBLE, 1.0)
    coordinator.handle(beat(2, Phase.STARTING), 2.0)
    run = coordinator.jobs["default"]
    run.gathering.join_timeouts.discard("n1")
    coordinator.handle(beat(2, Phase.IDLE), 500.0)
    coordinator.handle(StoreRecovered(), 1_001.0)
    assert run.gathering.join_timeouts.get("n1") == 1_001.0 + 60
    assert run.members["n1"].lease.awaited_from <= 1_001.0


def test_a_deserted_job_is_not_given_up_for_a_node_with_other_settings_that_cannot_be_taken_in() -> None:
    coordinator = a_coordinator()
    for session in (1, 2):
        connect(coordinator, session, f"n{session}")
    for session in (1, 2):
        coordinator.handle(Disconnected(session), 1.0)
    let_pass(coordinator, 10.0)
    assert coordinator.jobs["default"].roll.deserted
    coordinator.handle(TROUBLE, 10.0)
    other = Connected(3, a_join("n1", spec=a_spec(1, 1)), "10.0.0.1", "10.0.0.254")
    [refuse] = coordinator.handle(other, 11.0).effects
    assert isinstance(refuse, Refuse)
    assert (refuse.message.code, refuse.message.retry) == (RefusalCode.DEGRADED, True)
    connect(coordinator, 4, "n1", 12.0)
    connect(coordinator, 5, "n2", 12.0)
    coordinator.handle(StoreRecovered(), 13.0)
    assert coordinator.jobs["default"].durable.state is State.STARTING
    assert coordinator.jobs["default"].id == "e-1"
