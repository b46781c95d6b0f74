"""Histories that are played by hand, each checked at every step, and the tools that repeat one from its seed."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import MemberState
from coordinatord.protocol.messages import Phase
from tests.sim import campaign
from tests.sim.disk import Fault
from tests.sim.etcd import LEASE_S
from tests.sim.etcd_coordinator import EtcdCoordinator
from tests.sim.history import small_world
from tests.sim.scenario import Scenario, Workers
from tests.sim.trace import Trace
from tests.sim.world import BrokenError, World
from tests.support.programs import TIMEOUT_S

TRIO = Scenario(hosts=3, nodes_min=3, nodes_max=3, arrive_within_s=0.5, workers=Workers(stubborn=0.0, slow_to_die=0.0))

DIGEST = """
from tests.sim.history import small_world
from tests.sim.trace import Trace
Trace.is_digested = True
print(small_world({seed}).trace.digest)
"""


def running_trio(seed: int = 1) -> World:
    """Bring three nodes into their first round."""
    world = World(seed, TRIO)
    world.boot()
    world.until(world.is_running, within=30)
    return world


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 11, 40])
def test_a_seed_gives_the_same_history_again_also_in_another_process(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trace, "is_digested", True)
    first, second, other = (small_world(each) for each in (seed, seed, seed + 1))
    assert first.trace.digest == second.trace.digest != other.trace.digest
    assert first.chance.getstate() == second.chance.getstate()
    environ = os.environ | {"PYTHONHASHSEED": str(seed), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", DIGEST.format(seed=seed)]
    elsewhere = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=TIMEOUT_S)
    assert elsewhere.stdout.strip() == first.trace.digest


def test_what_breaks_an_invariant_is_reported_with_the_history_and_the_command_that_repeats_it() -> None:
    world = running_trio(seed=8)
    world.run.durable.restarts_used += 1
    world.hosts["n2"].workers.fail()
    with pytest.raises(BrokenError) as broken:
        world.go_on(10)
    text = campaign.explain(8, broken.value)
    assert "n2: worker 0 fails by itself" in text
    assert "seed 8: RoundLaws: memory and store differ: jobs.job.restarts_used: 1, 0" in text
    assert text.splitlines()[-1].startswith("to repeat: make sim SEED=8 ")


def test_what_does_not_come_in_time_is_reported_with_where_everything_stands() -> None:
    world = World(5, replace(TRIO, hosts=2))
    world.boot()
    with pytest.raises(BrokenError, match="not so within 3 s; life1-1 is forming, round 0: waiting for nodes: 2 of 3"):
        world.until(world.is_running, within=3)


def test_a_leader_that_is_killed_is_followed_by_a_standby_and_no_worker_is_touched() -> None:
    world = World(1, replace(TRIO, standbys=1))
    world.boot()
    world.until(world.is_running, within=30)
    started = {name: host.workers.training for name, host in world.hosts.items()}
    for _ in range(3):
        killed = world.daemon
        killed.crash(host=True)
        world.until(lambda: world.daemon.up and world.daemon.machine.sessions == 3, within=LEASE_S + 3)
        assert world.daemon is not killed
        killed.start()
        world.go_on(1.0)
    assert (world.run.durable.state, world.run.durable.round) == (State.RUNNING, 1)
    assert {name: host.workers.training for name, host in world.hosts.items()} == started


@pytest.mark.parametrize("seed", range(8))
def test_of_a_leader_that_is_paused_nodes_are_back_a_moment_after_they_fell_silent(seed: int) -> None:
    world = World(seed, replace(TRIO, standbys=1))
    world.boot()
    world.until(world.is_running, within=30)
    paused = world.daemon
    paused.pause()
    world.until(lambda: world.daemon is not paused and world.daemon.up, within=LEASE_S + 4)
    world.until(lambda: world.daemon.machine.sessions == 3, within=3)
    assert (world.run.durable.state, world.run.durable.round) == (State.RUNNING, 1)


@pytest.mark.parametrize("is_leader_cut", [False, True], ids=["nodes are cut off", "leader is cut off"])
def test_a_leader_that_starts_without_a_way_to_its_nodes_loses_the_spare_alone_until_it_is_back(
    is_leader_cut: bool,
) -> None:
    world = World(1, replace(TRIO, nodes_min=2, nodes_max=2, standbys=1, join_timeout_s=60.0))
    world.boot()
    world.until(lambda: world.is_running() and world.run.roll.count(MemberState.READY) == 1, within=30)
    world.go_on(1.0)  # the spare receives that it is one
    leader = world.daemon
    for coordinator in world.coordinators:
        coordinator.crash()
    if is_leader_cut:
        assert isinstance(leader, EtcdCoordinator)
        leader.cut_off(etcd=False, nodes=True)
    else:
        for host in world.hosts.values():
            host.cut_off()
    leader.start()
    world.until(lambda: world.invariants.facts.records["NodeLost"] > 0, within=LEASE_S + 20)
    assert sorted(world.run.members) == sorted(world.order)
    leader.heal()
    for host in world.hosts.values():
        host.heal()
    world.until(lambda: world.daemon.machine.sessions == 3, within=10)
    assert (world.run.durable.state, world.run.durable.round) == (State.RUNNING, 1)
    assert world.invariants.facts.records["NodeLost"] == 1
    assert len(world.run.members) == 3


def test_nodes_that_fell_silent_before_the_disk_failed_are_asked_nothing_when_it_is_well_again() -> None:
    world = running_trio()
    for host in world.hosts.values():
        host.cut_off()
    world.go_on(7)
    world.daemon.disk.break_down(Fault.HANGS)
    world.add_host("n4").boot()
    world.go_on(5)
    world.daemon.disk.repair()
    world.go_on(2)
    assert world.daemon.machine.store_error is None


def test_the_budget_is_not_charged_when_a_node_dies_with_the_coordinator() -> None:
    world = running_trio()
    world.hosts["n2"].vanish()
    world.until(lambda: world.state is State.STOPPING, within=5)
    world.daemon.crash()
    world.go_on(5)
    world.daemon.start()
    world.until(lambda: world.state is State.FORMING, within=60)
    assert world.run.durable.restarts_used == 0


def test_nobody_is_superseded_by_a_process_that_a_crash_would_forget() -> None:
    world = running_trio()
    world.daemon.disk.break_down(Fault.HANGS)
    world.add_host("n1-twin", "n1").boot()
    world.go_on(3)
    world.hosts["n1"].reset()
    world.go_on(8)
    assert world.hosts["n1"].exit is None
    assert world.hosts["n1"].agent is not None
    assert world.hosts["n1"].agent.phase is Phase.RUNNING


@pytest.mark.parametrize("state", [State.STARTING, State.RUNNING])
def test_a_store_that_is_set_back_goes_on_counting_where_the_nodes_are(state: State) -> None:
    world = World(1, replace(TRIO, workers=Workers(starts_within_s=1.0)))
    world.boot()
    world.until(lambda: world.state is state and not world.daemon.writing, within=30)
    copy = world.daemon.disk.copy()
    world.until(world.is_running, within=30)
    world.hosts["n3"].workers.fail()
    world.until(lambda: world.is_running() and world.run.durable.round == 2, within=30)
    world.daemon.set_store_back(copy)
    world.daemon.start()
    world.until(lambda: world.is_running() and world.run.durable.round > 2, within=60)
