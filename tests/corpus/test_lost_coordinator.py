"""Peer bugs: what coordinates the job dies, and the job with it."""

import pytest

from coordinatord.core.rounds.state.durable import State
from tests.corpus.support import AT_ONCE, LEASE_S, begin, furnish, trains
from tests.sim.disk import CrashPoint
from tests.sim.scenario import Workers
from tests.sim.world import World


def test_no_worker_is_touched_when_the_coordinator_is_killed() -> None:
    world = begin(3)
    world.daemon.crash()
    world.go_on(15)
    world.daemon.start()
    world.until(lambda: _all_are_back(world), within=2 * AT_ONCE)
    world.go_on(60)
    [training] = world.trainings.values()
    assert not training.broken
    assert world.run.durable.round == 1


def test_a_coordinator_whose_host_is_gone_for_a_while_finds_its_nodes_where_they_were() -> None:
    world = begin(3)
    world.daemon.crash(host=True)
    world.go_on(15)
    world.daemon.start()
    world.go_on(60)
    [training] = world.trainings.values()
    assert not training.broken
    assert _all_are_back(world)


def test_a_coordinator_that_was_stopped_for_a_lease_or_longer_has_lost_nobody() -> None:
    world = begin(10, nodes_max=8)
    for seconds in (4.0, 4.3, 4.6, 4.9, 5.2, 15.0):
        world.daemon.pause()
        world.go_on(seconds)
        world.daemon.wake()
        world.go_on(20)
    assert world.run.durable.round == 1
    assert world.invariants.facts.records["NodeLost"] == 0


def test_a_coordinator_that_is_cut_off_from_all_nodes_has_lost_nobody() -> None:
    world = begin(3)
    for host in world.hosts.values():
        host.cut_off()
    world.go_on(3 * LEASE_S)
    for host in world.hosts.values():
        host.heal()
    world.go_on(60)
    assert world.run.durable.round == 1
    assert _all_are_back(world)


@pytest.mark.parametrize("point", CrashPoint)
def test_a_coordinator_that_is_killed_while_it_decides_forgets_nothing_that_it_said(point: CrashPoint) -> None:
    world = begin(3, max_restarts=1)
    world.daemon.doom(point)
    world.hosts["n2"].workers.fail()
    world.until(lambda: not world.daemon.up)
    world.daemon.start()
    world.until(lambda: world.is_running() and world.run.durable.round > 1)
    assert world.run.durable.restarts_used == 1


def test_a_run_that_is_done_while_the_coordinator_is_away_has_succeeded_when_it_is_back() -> None:
    world = begin(3, workers=Workers(work_s=10.0))
    world.daemon.crash()
    world.go_on(15)
    world.daemon.start()
    world.until(world.is_over, within=2 * AT_ONCE)
    assert world.run.durable.state is State.SUCCEEDED
    assert world.run.durable.round == 1


def test_a_host_that_dies_while_the_coordinator_is_away_is_replaced_when_it_is_back() -> None:
    world = begin(3)
    world.daemon.crash()
    world.hosts["n2"].vanish()
    world.go_on(5)
    world.daemon.start()
    world.until(trains(world, "n1", "n3"), within=15 + AT_ONCE)
    assert world.run.durable.restarts_used == 0


def test_a_node_that_is_slow_to_come_back_to_a_coordinator_that_was_killed_is_not_lost() -> None:
    world = begin(3)
    world.daemon.crash()
    world.hosts["n2"].cut_off()
    world.daemon.start()
    world.go_on(8)
    world.hosts["n2"].heal()
    world.go_on(60)
    assert world.run.durable.round == 1
    assert _all_are_back(world)


def test_nodes_that_cannot_reach_the_coordinator_form_no_world_of_their_own() -> None:
    world = furnish(3, nodes_min=3)
    world.daemon.crash(host=True)
    world.boot()
    world.go_on(10)
    assert not any(host.workers.alive for host in world.hosts.values())
    world.daemon.start()
    world.until(trains(world, "n1", "n2", "n3"))


def test_hundreds_of_nodes_are_back_at_once_when_the_coordinator_is() -> None:
    world = begin(300, nodes_min=300)
    world.daemon.crash()
    world.go_on(10)
    world.daemon.start()
    world.until(lambda: _all_are_back(world), within=2 * AT_ONCE)
    assert world.run.durable.round == 1


def _all_are_back(world: World) -> bool:
    return world.is_running() and world.daemon.machine.sessions == len(world.hosts)
