"""A shutdown of all hosts, the coordinator's too: the last step reaches the disk, in any order of the signals."""

from __future__ import annotations

import pytest

from coordinatord.core.keeping.known import kept_of
from coordinatord.core.rounds.state.durable import State
from tests.sim.kept_copies import Keeps
from tests.sim.scenario import Scenario, Workers
from tests.sim.world import World

APART_S = 0.5
"""The longest time between the first signal and the last one."""

SHARDS = Scenario(
    nodes_min=3,
    nodes_max=3,
    arrive_within_s=0.5,
    skips_idle=False,
    keeps=Keeps.UNIQUE,
    persist_every_s=600,
    workers=Workers(work_s=3600.0, first_step_s=0.0, stubborn=0.0, slow_to_die=0.0),
)


@pytest.mark.parametrize("seed", range(20))
def test_nodes_and_their_coordinator_are_asked_to_end_at_once(seed: int) -> None:
    world = World(seed, SHARDS)
    world.boot()
    world.until(lambda: world.is_running() and kept_of(world.run).protection.whole is not None, within=60)
    kept = kept_of(world.run).protection.whole
    for end in (world.daemon.end, *(host.leave for host in world.hosts.values())):
        world.queue.plan(world.chance.uniform(0.0, APART_S), end)
    world.until(lambda: not world.daemon.up and all(host.exit for host in world.hosts.values()), within=60)
    assert world.run.durable.state is State.LEFT
    assert world.disks.shared.whole[0].of >= (world.run.id, kept)


def test_a_coordinator_whose_job_trains_ends_within_a_second() -> None:
    world = World(1, SHARDS)
    world.boot()
    world.until(world.is_running, within=60)
    world.daemon.end()
    world.until(lambda: not world.daemon.up, within=1.1)
