"""Leaders that are cut off from all nodes but not from etcd: a standby takes over, once for each cut."""

from __future__ import annotations

import random
from dataclasses import replace

from msgspec import structs

from coordinatord.core.rounds.state.durable import State
from tests.sim.etcd import LEASE_S
from tests.sim.etcd_coordinator import EtcdCoordinator
from tests.sim.faults import happen
from tests.sim.history import begin
from tests.sim.scenario import draw_calm_scenario
from tests.sim.takeovers import etcd_coordinators
from tests.sim.world import World

CUT_FOR_S = 60.0
"""How long no node reaches any coordinator: twelve leases, and less than nodes wait."""


def cut_leader_world(seed: int) -> World:
    """Play the history of nodes that lose their way to the leader, and later to all coordinators."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    drawn = draw_calm_scenario(chance)
    workers = replace(drawn.workers, work_s=600.0)
    policy = structs.replace(drawn.policy, outage_grace_s=300.0)
    scenario = replace(drawn.of_nodes(3), policy=policy, standbys=1, skips_idle=False, workers=workers)
    world = begin(seed, scenario)
    world.until(world.is_running, within=60)
    world.go_on(chance.uniform(0.0, 10.0))
    world.until(lambda: _serves_all(world), within=60)  # its lease may be over just now, where etcd answers late
    round_number, cut = world.run.durable.round, world.daemon
    assert isinstance(cut, EtcdCoordinator)
    life = cut.life
    happen(world, "leader cut off from nodes until another one leads", lambda _: cut.cut_off(etcd=False, nodes=True))
    longest_s = policy.heartbeats_per_lease * policy.heartbeat_s * policy.lease_stretch_max
    world.until(lambda: _is_followed(world, cut) or _leads_anew(cut, life), within=longest_s + LEASE_S)
    if world.daemon is cut:
        cut.heal()
        world.until(lambda: _serves_all(world), within=longest_s + LEASE_S)
    world.go_on(chance.uniform(0.0, 10.0))
    before = _gave_way(world)
    happen(world, "all coordinators cut off from nodes", _cut_all_off)
    world.go_on(CUT_FOR_S)
    # Other takeovers may come in between: a lease is over where etcd answers late.
    if _gave_way(world) > before + 1:
        raise world.failure(f"leaders that nobody reaches gave way {_gave_way(world) - before} times")
    for coordinator in etcd_coordinators(world):
        coordinator.heal()
    world.until(lambda: _serves_all(world), within=longest_s + LEASE_S)
    if (world.state, world.run.durable.round) != (State.RUNNING, round_number):
        raise world.failure("the round did not outlast the cuts")
    return world


def _cut_all_off(world: World) -> None:
    for coordinator in etcd_coordinators(world):
        coordinator.cut_off(etcd=False, nodes=True)


def _gave_way(world: World) -> int:
    return sum(coordinator.gave_way for coordinator in etcd_coordinators(world))


def _is_followed(world: World, cut: EtcdCoordinator) -> bool:
    return _serves_all(world) and world.daemon is not cut


def _leads_anew(cut: EtcdCoordinator, life: int) -> bool:
    """Whether a leader lost its lease before it could give way, and leads again: it stays, since no node has come."""
    return cut.life != life and not cut.gave_way


def _serves_all(world: World) -> bool:
    return world.is_running() and world.daemon.machine.sessions == world.scenario.hosts
