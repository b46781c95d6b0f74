"""A leader that no node reaches lets a standby lead."""

from __future__ import annotations

import pytest

from coordinatord.core.rounds.state.durable import State
from coordinatord.store.etcd.gateway import REQUEST_WITHIN_S
from tests.sim.etcd import LEASE_S
from tests.sim.scenario import Scenario, Workers
from tests.sim.takeovers import etcd_coordinators
from tests.sim.world import World

PAIR = Scenario(hosts=3, nodes_min=3, nodes_max=3, standbys=1, skips_idle=False, workers=Workers(work_s=600.0))
"""Two coordinators, and nodes that do not succeed meanwhile."""


@pytest.mark.parametrize("seed", [1, 23])
def test_a_leader_that_no_node_reaches_waits_for_a_standby_that_etcd_answers_late(seed: int) -> None:
    world = World(seed, PAIR)
    world.boot()
    world.until(world.is_running, within=30)
    [cut] = [coordinator for coordinator in etcd_coordinators(world) if coordinator is world.daemon]
    [standby] = [coordinator for coordinator in etcd_coordinators(world) if coordinator is not cut]
    cut.cut_off(etcd=False, nodes=True)
    world.until(lambda: not cut.up, within=LEASE_S + 10)
    standby.cut_off(etcd=True, nodes=False)
    world.go_on(REQUEST_WITHIN_S / 2)
    standby.heal()
    world.until(lambda: world.daemon is standby and standby.up and standby.machine.sessions == 3, within=LEASE_S + 5)
    assert (world.run.durable.state, world.run.durable.round) == (State.RUNNING, 1)
