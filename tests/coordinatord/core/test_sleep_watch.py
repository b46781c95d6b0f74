"""A coordinator that was asleep does not count that against its nodes, however short it was."""

from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.sleep_watch import SleepWatch
from tests.support.script import play

POLICY = Policy(heartbeat_s=1.0, reconnect_grace_s=1.0)


def a_watch() -> SleepWatch:
    watch = SleepWatch()
    watch.begin(POLICY, 0.0)
    return watch


def test_a_sleep_of_less_than_a_heartbeat_is_one_only_while_a_node_may_come_back() -> None:
    watch = a_watch()
    assert not watch.on_event(0.25, 0.0, POLICY, 0.95)
    watch = a_watch()
    watch.expect_return(POLICY, 0.0)
    assert watch.check_at == 0.25
    assert watch.on_event(0.25, 0.0, POLICY, 0.95)
    assert watch.wake(POLICY, 0.95) == 0.95


def test_the_clock_is_looked_at_once_a_heartbeat_again_when_nobody_may_come_back() -> None:
    watch = a_watch()
    watch.expect_return(POLICY, 0.0)
    checks = []
    while watch.check_at < 3.0:
        checks.append(watch.check_at)
        assert not watch.on_event(watch.check_at, 0.0, POLICY, watch.check_at)
    assert checks == [0.25, 0.5, 0.75, 1.0, 2.0]


AT_WORK = ("join n1 n2 min=2 max=2", "advance 1s", "running n1 n2")


def test_a_node_whose_connection_closed_before_a_short_sleep_is_not_lost_by_it() -> None:
    """Its join has arrived by the end of the sleep, and is read after the look at the clock."""
    stage = play(*AT_WORK, "advance 0.1s", "drop n2", "stall 1.05s", "advance 0.85s")
    assert stage.state() is State.RUNNING
    stage.play("advance 0.2s")
    assert stage.state() is State.STOPPING, "its time to come back is over"


def test_a_node_that_closed_its_connection_during_a_sleep_has_a_whole_lease_to_come_back() -> None:
    """It closed it because it heard nothing, and first looks for another coordinator."""
    stage = play(*AT_WORK)
    stage.now = 6.0
    stage.play("drop n2", "advance 2s")
    assert stage.state() is State.RUNNING
    stage.play("advance 4s")
    assert stage.state() is State.STOPPING, "its lease is over"
