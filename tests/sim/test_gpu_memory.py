"""Memory of GPUs that outlives workers: no round begins over it before its time, and none waits for ever."""

from __future__ import annotations

import pytest

from coordinatord.core.rounds.state.durable import State
from nodeclient.core.sweeping import FREE_WITHIN_S, SAMPLE_MAX_S
from tests.sim.scenario import Scenario, Workers
from tests.sim.world import World

PAIR = Scenario(
    hosts=2,
    nodes_min=2,
    nodes_max=2,
    arrive_within_s=0.5,
    stop_timeout_s=30.0,
    workers=Workers(stubborn=0.0, slow_to_die=0.0, gpu_held_s=2 * FREE_WITHIN_S),
)


REST_S = 5.0
"""The time for the pause after the same error, which is 4 s, for messages, and for the end of the workers."""


@pytest.mark.parametrize("seed", range(8))
def test_a_round_waits_for_memory_that_the_driver_holds_and_charges_nobody_for_it(seed: int) -> None:
    world = World(seed, PAIR)
    world.boot()
    world.until(world.is_running, within=30)
    for number in (1, 2, 3):
        assert world.run.durable.round == number
        world.hosts["n1"].workers.fail()
        world.until(lambda: world.run.durable.state is State.STOPPING, within=5)
        began_at = world.queue.now
        world.until(world.is_running, within=120)
        assert world.run.durable.round == number + 1
        assert world.queue.now - began_at < FREE_WITHIN_S + SAMPLE_MAX_S + REST_S
        assert world.run.durable.restarts_used == number, "the wait is no failure"
