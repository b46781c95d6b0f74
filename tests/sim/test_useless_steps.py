"""A kept step that was of no use to a round: who knows of it chooses another one, and a crash may forget it."""

from __future__ import annotations

import pytest

from coordinatord.core.keeping.known import kept_of
from coordinatord.core.rounds.events import Reported
from coordinatord.core.rounds.values.records import RoundFormed
from tests.sim.crash_point import CrashPoint
from tests.sim.disk import Fault
from tests.sim.kept_copies import Keeps
from tests.sim.scenario import Scenario, Workers
from tests.sim.world import World

ALONE = Scenario(
    hosts=1,
    nodes_min=1,
    nodes_max=1,
    arrive_within_s=0.5,
    skips_idle=False,
    keeps=Keeps.UNIQUE,
    workers=Workers(first_step_s=0.0, stubborn=0.0, slow_to_die=0.0),
)


@pytest.mark.parametrize("recorded", [False, True])
def test_a_step_is_useless_to_the_next_coordinator_only_if_that_was_recorded(recorded: bool) -> None:
    world = World(1, ALONE)
    world.boot()
    world.until(world.is_running, within=30)
    early = world.run.members["n1"].observed
    world.until(lambda: kept_of(world.run).protection.whole is not None, within=10)
    world.daemon.disk.break_down(Fault.HANGS)
    world.hosts["n1"].workers.fail()
    world.until(lambda: world.run.durable.round == 2, within=5)
    chosen, session = world.run.durable.resume, world.run.members["n1"].session.id
    assert chosen is not None
    assert session is not None
    world.daemon.take(Reported(session, early), world.daemon.life)  # it comes late, and lacks what is kept by now
    assert world.run.durable.spoiled
    if recorded:
        world.daemon.doom(CrashPoint.AFTER, RoundFormed)
        world.daemon.disk.repair()
        world.until(lambda: not world.daemon.up, within=5)
    else:
        world.daemon.crash()
        world.daemon.disk.repair()
    world.daemon.start()
    world.until(lambda: world.is_running() and world.run.durable.round > 1, within=30)
    assert (world.run.durable.resume == chosen) is not recorded
