"""Histories of a store that takes up to a second for each write: what is decided meanwhile waits for the next write.

They are histories of their own, so that the seeds of others play what they have always played.
"""

from __future__ import annotations

import random
from dataclasses import replace

from coordinatord.server.driver import PATIENCE_S
from tests.sim.faults import strike
from tests.sim.history import FAULTS_FOR_S, come_to_rest
from tests.sim.scenario import draw_calm_scenario
from tests.sim.world import World

COMMIT_S = 0.9 * PATIENCE_S
"""The longest time that a write takes: after the patience the store would count as failed."""

FAILURES_MAX = 6
"""The most failures in one history."""

FAILURES = ("worker fails", "two workers fail", "node killed", "operator restarts", "operator stops")
"""The failures, by name. The records that follow from each come soon after one another."""


def slow_store_world(seed: int, *, loud: bool = False, digested: bool = False) -> World:
    """Play the history of a few nodes that fail, and of a slow store. Raises as `small_world` does."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    drawn = draw_calm_scenario(chance)
    nodes = chance.choice([2, 3])
    scenario = replace(
        drawn,
        nodes_min=nodes,
        nodes_max=nodes,
        hosts=nodes,
        max_restarts=9,
        commit_s=COMMIT_S,
        workers=replace(drawn.workers, work_s=60.0, breaks=1.0),
    )
    world = World(seed, scenario, loud=loud, digested=digested)
    world.boot()
    world.comes_back = 1.0
    for _ in range(chance.randint(1, FAILURES_MAX)):
        world.queue.plan(chance.uniform(5.0, FAULTS_FOR_S), strike, world, chance.choice(FAILURES))
    world.go_on(FAULTS_FOR_S)
    come_to_rest(world)
    return world
