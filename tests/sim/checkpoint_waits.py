"""Histories of nodes that arrive while a job trains, and wait for its next checkpoint (`--scale-up at-checkpoint`).

They are histories of their own, so that the seeds of others play what they have always played.
"""

from __future__ import annotations

import random
from dataclasses import replace

from coordinatord.protocol.messages import ScaleUp
from tests.sim.coincidences import newcomer
from tests.sim.faults import strike
from tests.sim.history import FAULTS_FOR_S, come_to_rest
from tests.sim.kept_copies import Keeps
from tests.sim.scenario import draw_calm_scenario, stepping_workers
from tests.sim.world import World

ARRIVALS = 4
"""The most nodes that arrive."""

BESIDE = ("worker fails", "node killed", "coordinator killed", "operator restarts")
"""What else may happen."""


def checkpoint_waiting_world(seed: int, *, loud: bool = False, digested: bool = False) -> World:
    """Play the history of a few nodes to which others come. Raises as `small_world` does."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    drawn = draw_calm_scenario(chance)
    workers = replace(stepping_workers(chance, drawn), work_s=90.0)
    nodes = chance.choice([1, 2, 3])
    scenario = replace(
        drawn,
        nodes_min=1,
        nodes_max=nodes + chance.randint(1, ARRIVALS),
        hosts=nodes,
        max_restarts=9,
        scale_up=ScaleUp.AT_CHECKPOINT,
        keeps=Keeps.SHARED,
        writes_every=chance.choice([None, 5, 10, 40]),
        workers=workers,
    )
    world = World(seed, scenario, loud=loud, digested=digested)
    world.boot()
    world.comes_back = 1.0
    for _ in range(chance.randint(1, ARRIVALS)):
        world.queue.plan(chance.uniform(8.0, FAULTS_FOR_S), newcomer, world)
    for _ in range(chance.choice([0, 1, 2])):
        world.queue.plan(chance.uniform(8.0, FAULTS_FOR_S), strike, world, chance.choice(BESIDE))
    world.go_on(FAULTS_FOR_S)
    come_to_rest(world)
    return world
