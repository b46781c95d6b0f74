"""A coordinator that was asleep does not count that against its nodes, however short it was."""

from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.events import Connected, Disconnected, Reported, Tick
from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.sleep_watch import SleepWatch
from coordinatord.protocol.messages import Phase
from tests.support.builders import a_coordinator, a_join, a_spec, an_observed, let_pass

POLICY = Policy(heartbeat_s=1.0, reconnect_grace_s=1.0)


def a_watch() -> SleepWatch:
    watch = SleepWatch()
    watch.begin(POLICY, 0.0)
    return watch


AT_WORK = an_observed(run="e-1", round=1, phase=Phase.RUNNING, beat=True)


def two_nodes_at_work() -> Coordinator:
    """Return a coordinator whose two nodes, in the sessions 1 and 2, have reported at 1.0 that their workers run."""
    coordinator = a_coordinator(reconnect_grace_s=1.0)
    for session in (1, 2):
        join = a_join(f"n{session}", spec=a_spec(2, 2))
        coordinator.handle(Connected(session, join, "10.0.0.1", "10.0.0.254"), 0.0)
    for session in (1, 2):
        coordinator.handle(Reported(session, AT_WORK), 1.0)
    return coordinator


def test_a_sleep_of_less_than_a_heartbeat_is_one_only_while_a_node_may_come_back() -> None:
    watch = a_watch()
    assert not watch.on_event(0.25, 0.0, POLICY, 0.95)
    watch = a_watch()
    watch.expect_return(POLICY, 0.0)
    assert watch.look_at == 0.25
    assert watch.on_event(0.25, 0.0, POLICY, 0.95)
    assert watch.wake(POLICY, 0.95) == 0.95


def test_the_clock_is_looked_at_once_a_heartbeat_again_when_nobody_may_come_back() -> None:
    watch = a_watch()
    watch.expect_return(POLICY, 0.0)
    looks = []
    while watch.look_at < 3.0:
        looks.append(watch.look_at)
        assert not watch.on_event(watch.look_at, 0.0, POLICY, watch.look_at)
    assert looks == [0.25, 0.5, 0.75, 1.0, 2.0]


def test_a_node_whose_connection_closed_before_a_short_sleep_is_not_lost_by_it() -> None:
    """Its join has arrived by the end of the sleep, and is read after the look at the clock."""
    coordinator = two_nodes_at_work()
    coordinator.handle(Disconnected(2), 1.1)
    assert coordinator.handle(Tick(), 2.15).records == ()
    assert coordinator.jobs["default"].durable.state is State.RUNNING
    coordinator.handle(Reported(1, AT_WORK), 2.2)
    assert let_pass(coordinator, 3.0) == []
    assert let_pass(coordinator, 3.2) != [], "its time to come back is over"


def test_a_node_that_closed_its_connection_during_a_sleep_has_a_whole_lease_to_come_back() -> None:
    """It closed it because it heard nothing, and first looks for another coordinator."""
    coordinator = two_nodes_at_work()
    for event in (Disconnected(2), Reported(1, AT_WORK)):
        assert coordinator.handle(event, 6.0).records == ()
    assert let_pass(coordinator, 8.0) == []
    assert let_pass(coordinator, 12.0) != [], "its lease is over"
