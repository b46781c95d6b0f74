"""A leader that no node reaches lets a standby lead, once for each cut."""

from __future__ import annotations

from coordinatord.core.state.durable import State
from coordinatord.store.etcd.gateway import ALL_WITHIN_S
from tests.sim.cut_leaders import cut_leader_world
from tests.sim.etcd import LEASE_S
from tests.sim.scenario import Scenario, Workers
from tests.sim.takeovers import contenders
from tests.sim.world import World

HISTORIES = 20

PAIR = Scenario(hosts=3, nodes_min=3, nodes_max=3, standbys=1, skips_idle=False, workers=Workers(work_s=600.0))
"""Two coordinators, and nodes that do not succeed meanwhile."""


def test_every_leader_that_no_node_reaches_lets_a_standby_lead_and_once_for_each_cut() -> None:
    for seed in range(HISTORIES):
        cut_leader_world(seed)


def test_a_leader_that_no_node_reaches_waits_for_a_standby_that_etcd_answers_late() -> None:
    world = World(1, PAIR)
    world.boot()
    world.until(world.is_running, within=30)
    [cut] = [contender for contender in contenders(world) if contender is world.daemon]
    [standby] = [contender for contender in contenders(world) if contender is not cut]
    cut.cut_off(etcd=False, nodes=True)
    world.until(lambda: not cut.up, within=LEASE_S + 10)
    standby.cut_off(etcd=True, nodes=False)
    world.go_on(ALL_WITHIN_S / 2)
    standby.heal()
    world.until(lambda: world.daemon is standby and standby.up and standby.machine.sessions == 3, within=LEASE_S + 5)
    assert (world.run.durable.state, world.run.durable.round) == (State.RUNNING, 1)
