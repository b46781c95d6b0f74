"""Histories of nodes whose ranks should all have the same state, and of which some save another one at a break.

They are histories of their own, so that the seeds of others play what they have always played.
"""

from __future__ import annotations

import random
from dataclasses import replace

from tests.sim.history import disturb
from tests.sim.kept_copies import Keeps
from tests.sim.scenario import draw_scenario
from tests.sim.world import World


def differing_world(seed: int, *, loud: bool = False, digested: bool = False) -> World:
    """Play the history of a few nodes, some of which save another state than others. Raises as `small_world` does."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    drawn = draw_scenario(chance)
    scenario = replace(
        drawn,
        max_restarts=9,
        keeps=Keeps.SHARED,
        states_differ=chance.choice([0.1, 0.3]),
        skips_idle=False,
        workers=replace(drawn.workers, first_step_s=0.0, stalls=0.0, work_s=60.0),
    )
    world = World(seed, scenario, loud=loud, digested=digested)
    world.boot()
    world.comes_back = chance.choice([0.7, 1.0])
    disturb(world, chance, 10, [0, 0, 1])
    return world
