"""Histories of two nodes that copy each other's kept state, until one of them leaves and the other goes on alone.

They are histories of their own, so that the seeds of others play what they have always played.
"""

from __future__ import annotations

import random
from dataclasses import replace

from tests.sim.coincidences import in_round, once, trains
from tests.sim.faults import Strike
from tests.sim.history import play_coincidence
from tests.sim.kept_copies import Keeps
from tests.sim.scenario import draw_calm_scenario, stepping_workers
from tests.sim.world import World

LEAVES_WITHIN_S = 5.0
"""The time within which a node leaves, once a step is kept twice."""


def lone_node_world(seed: int, *, loud: bool = False, digested: bool = False) -> World:
    """Play the history of a node whose only peer leaves. Raises as `small_world` does."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    drawn = draw_calm_scenario(chance)
    workers = replace(stepping_workers(chance, drawn), stubborn=0.0)
    scenario = replace(
        drawn, nodes_min=1, nodes_max=2, hosts=2, max_restarts=9, keeps=Keeps.UNIQUE, copies=True, workers=workers
    )
    known: dict[str, Strike] = {"one of two nodes leaves": _leave}
    return play_coincidence(seed, chance, scenario, known, loud=loud, digested=digested)


def _leave(world: World) -> None:
    def leave() -> None:
        world.queue.plan(world.chance.uniform(0.0, LEAVES_WITHIN_S), world.chance.choice(in_round(world)).leave)

    once(world, lambda: trains(world) and len(in_round(world)) == world.scenario.hosts and world.run.kept.copied, leave)
