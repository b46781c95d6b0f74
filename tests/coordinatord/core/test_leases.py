"""How long a node may be silent: as promised on a good network, longer on one that was bad recently."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coordinatord.core.leases import SleepWatch
from coordinatord.core.own_end import is_cut_off
from coordinatord.core.rounds.effects import Send
from coordinatord.core.rounds.events import Connected, Reported, Tick
from coordinatord.core.rounds.policy import Policy
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import Member
from coordinatord.core.rounds.values.records import NodeLost
from coordinatord.protocol.codec import decode, encode
from coordinatord.protocol.fields import DURATION_S_MAX
from coordinatord.protocol.messages import Desired
from tests.support.builders import a_coordinator, a_join, a_member, a_spec, an_observed, an_offer
from tests.support.script import Stage, play

POLICY = Policy(heartbeat_s=1.0, heartbeats_per_lease=5.0, lease_stretch_max=3.0)


def heard_at(*times: float) -> Member:
    """Return a member that was heard at these times, after it came at 0."""
    member = a_member()
    member.lease.heartbeat_s = 1.0
    for now in times:
        member.lease.record_heard(0.0, POLICY, now)
    return member


def lease(member: Member) -> float:
    return member.lease.length_s(POLICY, 1.0)


@pytest.mark.parametrize("late_s", [0.0, 0.02, 0.3, 0.5])
def test_whoever_is_on_time_has_the_lease_that_was_promised(late_s: float) -> None:
    assert lease(heard_at(1.0 + late_s, 2.0, 3.0 + late_s)) == 5.0


def test_whoever_speaks_more_often_than_asked_is_on_time() -> None:
    assert lease(heard_at(0.1, 0.2, 0.3)) == 5.0


def test_who_was_late_gets_five_times_as_much_more_up_to_a_limit() -> None:
    assert lease(heard_at(3.0)) == 5.0 + 5.0 * 1.5
    assert lease(heard_at(60.0)) == 15.0


def test_lateness_is_forgotten_by_and_by() -> None:
    punctual = [3.0 + beat for beat in range(1, 61)]
    leases = [lease(heard_at(3.0, *punctual[:count])) for count in range(61)]
    assert leases == sorted(leases, reverse=True)
    assert leases[-1] < 5.0 + 0.2 * (leases[0] - 5.0)


def test_lateness_adds_up() -> None:
    """One heartbeat in three is late by a second: no single one of them is worth more than some seconds."""
    beats = [now for start in range(0, 60, 4) for now in (start + 1.0, start + 2.0, start + 4.0)]
    leases = [lease(heard_at(*beats[: 3 * count])) for count in range(1, 16)]
    assert leases[0] == 5.0 + 5.0 * 0.5
    assert leases == sorted(leases)
    assert leases[-1] > 10.0


# What nodes receive

up_to_a_day = st.floats(0.0, DURATION_S_MAX)


@example(join_timeout_s=DURATION_S_MAX, late_s=0.0, heartbeat_s=1.0, now=87637.7)
@example(join_timeout_s=60.0, late_s=DURATION_S_MAX, heartbeat_s=6_000.0, now=0.0)
@given(up_to_a_day, up_to_a_day, st.floats(0.2, DURATION_S_MAX / 5), st.floats(0.0, 1e7))
def test_no_wait_and_no_lease_is_longer_than_a_message_can_say(
    join_timeout_s: float, late_s: float, heartbeat_s: float, now: float
) -> None:
    coordinator = a_coordinator(heartbeat_s=heartbeat_s)
    join = a_join("n1", spec=a_spec(2, 2), offer=an_offer("n1", join_timeout_s=join_timeout_s))
    [came] = coordinator.handle(Connected(1, join, "10.0.0.1", "10.0.0.254"), now).effects
    [spoke] = coordinator.handle(Reported(1, an_observed(beat=True)), now + late_s).effects
    for effect in (came, spoke):
        assert isinstance(effect, Send)
        assert decode(encode(effect.message), Desired) == effect.message


# The machine

PAIR = ("join n1 n2 min=2 max=2", "running n1 n2")


def lost_at(stage: Stage) -> float:
    """Let n1 go on and n2 be silent; return when n2 is lost."""
    stage.play("silence n2")
    while stage.state() is State.RUNNING:
        stage.play("advance 0.125s")
    return stage.now


def test_a_silence_that_another_foreboded_is_borne_for_longer() -> None:
    assert lost_at(play(*PAIR, "silence n2", "advance 4s", "heal n2")) == 4.0 + 15.0


def test_the_time_that_the_coordinator_slept_or_could_not_write_makes_nobody_late() -> None:
    stage = play(*PAIR, "stall 100s", "advance 0.5s", "silence n1 n2", "trouble 99.5s", "heal n1 n2")
    assert lost_at(stage) == 205.0


def test_to_have_been_out_of_sight_for_a_moment_changes_nothing() -> None:
    assert lost_at(play(*PAIR, "advance 3.5s", "drop n2", "advance 0.75s", "reconnect n2")) == 9.25


@pytest.mark.parametrize(("closed_s", "lost"), [(1, 2.0), (2, 5.0)], ids=["on time", "in a silence"])
def test_a_connection_that_closes_on_time_is_a_process_that_died(closed_s: int, lost: float) -> None:
    assert lost_at(play(*PAIR, "silence n2", f"advance {closed_s}s", "drop n2")) == lost


def test_who_heard_us_late_gets_more_time_as_well_once_it_has() -> None:
    member = heard_at()
    for now, heard_s in ((1.0, 1.0), (2.0, 2.0), (3.0, 3.0)):
        member.lease.record_heard(heard_s, POLICY, now)
        assert lease(member) == 5.0, "it may be cut off for good"
    member.lease.record_heard(0.5, POLICY, 4.0)
    assert lease(member) == 5.0 + 5.0 * 1.5


def test_a_connection_that_closes_on_a_bad_network_leaves_the_lease_as_it_is() -> None:
    stage = play(*PAIR, "silence n2", "advance 4s", "heal n2", "advance 0.5s", "drop n2")
    assert lost_at(stage) == 4.0 + 15.0


def test_what_nodes_did_not_hear_while_the_coordinator_slept_makes_nobody_late() -> None:
    stage = play(*PAIR)
    stage.now = 20.0
    stage.handle(Tick())
    for node in ("n1", "n2"):
        for heard_s in (1.0, 7.0, 13.0, 0.5):
            stage.report(node, beat=True, heard_s=heard_s)
    assert lost_at(stage) == 25.0


# Nodes of other jobs, which stretch the heartbeat


CROWD = """
    join n4 n5 n6 n7 n8 n9 n10 job=other min=7 max=7
    join n1 n2 n3 min=2 max=3 heard_s=2.5
    running n1 n2 n3
    advance 21s
"""
"""A job of three nodes that were granted 2.5 s, since there are ten nodes of two jobs. Each says that it heard the
coordinator 2.5 s ago."""


def crowd() -> Stage:
    """Play `CROWD` before a coordinator that takes four heartbeats a second."""
    return play(CROWD, heartbeats_per_s_max=4)


def losses(stage: Stage) -> list[tuple[str, float]]:
    """Return who was lost, and after how long a silence."""
    return [(record.node, record.silent_s) for record in stage.records(NodeLost)]


def test_a_node_whose_peers_beat_as_granted_is_lost_at_once_when_their_errors_prove_it() -> None:
    stage = crowd()
    stage.play("drop n3", "fail n1 of=peer", "stopped n2", "failed n1")
    assert losses(stage) == [("n3", 0.0)]


def test_no_node_is_late_as_it_was_not_told_yet_that_others_have_left() -> None:
    stage = crowd()
    stage.play("drop n4 n5 n6 n7 n8 n9 n10 job=other", "advance 2.5s")
    for node in ("n1", "n2", "n3"):
        assert stage.desired(node).heartbeat_s == 1.0
        stage.report(node, heard_s=0.0)
    stage.play("drop n3", "fail n1 of=peer", "stopped n2", "failed n1")
    assert losses(stage) == [("n3", 0.0)]


def test_a_silent_node_is_lost_at_the_end_of_its_lease_when_others_beat_as_granted() -> None:
    stage = crowd()
    stage.play("advance 2.4s", "heal n3", "silence n3", "advance 12.5s")
    assert losses(stage) == [("n3", 12.5)]


def test_two_looks_at_stalled_workers_are_a_granted_heartbeat_apart() -> None:
    stage = crowd()
    stage.play("step n1 n2 n3 1", "advance 2.5s", "step n1 n2 n3 2", "advance 60s", "seen waits waits stands")
    assert not any("looks at" in text for text in stage.play("advance 2.4s"))
    assert any("looks at" in text for text in stage.play("advance 0.1s"))


# A coordinator that was asleep


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


# A coordinator that is cut off


SILENT = "advance 20s"
"""Longer than any lease."""


def cut_off(stage: Stage) -> bool:
    return is_cut_off(stage.coordinator.cluster)


def test_a_coordinator_is_cut_off_once_the_last_node_has_been_silent_for_its_lease() -> None:
    stage = play(*PAIR, "silence n1", "advance 1s", "silence n2", "advance 4.5s")
    assert [member.lease.expired for member in stage.run.members.values()] == [True, False]
    assert not cut_off(stage)
    stage.play(SILENT)
    assert cut_off(stage)
    stage.play("heal n1")
    assert not cut_off(stage)


@pytest.mark.parametrize(
    "lines", [(*PAIR, "drop n1 n2"), (*PAIR, "die 100s")], ids=["all connections closed", "nodes of before never came"]
)
def test_a_coordinator_is_not_cut_off_where_no_node_has_fallen_silent_in_a_connection(lines: tuple[str, ...]) -> None:
    stage = play(*lines)
    assert not cut_off(stage)
    stage.play(SILENT)
    assert stage.run.roll.all_silent
    assert not cut_off(stage)


def test_a_coordinator_is_not_cut_off_without_nodes_or_where_all_of_them_have_left() -> None:
    assert not cut_off(Stage())
    assert not cut_off(play(*PAIR, "ask stop default", "stopped n1 n2", "drop n1 n2", SILENT))
