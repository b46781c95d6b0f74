"""A coordinator that does not know a run has none of its workers ended, and none of its nodes, before the grace."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.sim.faults import strike
from tests.sim.foreign_coordinator import ForeignCoordinator
from tests.sim.history import begin, come_to_rest
from tests.sim.scenario import draw_calm_scenario
from tests.sim.world import World

HISTORIES = 30

FAULTS = ("coordinator killed", "coordinator gone for long", "coordinator stalls", "connection reset", "worker fails")


def foreign_coordinator_world(seed: int) -> World:
    """Play the history of nodes that look for their coordinator at two addresses, and find another at the second."""
    chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
    drawn = draw_calm_scenario(chance)
    world = begin(seed, replace(drawn, max_restarts=9, has_foreign_coordinator=True))
    world.until(lambda: world.is_running() or world.is_over(), within=60)
    for _ in range(chance.randint(1, 4)):
        world.queue.plan(chance.uniform(0.0, 30.0), strike, world, chance.choice(FAULTS))
    world.go_on(75.0)
    come_to_rest(world)
    return world


def foreign_coordinators(world: World) -> list[ForeignCoordinator]:
    """Return the coordinators of another history."""
    return [foreign for foreign in world.coordinators if isinstance(foreign, ForeignCoordinator)]


@pytest.mark.slow
def test_no_foreign_coordinator_takes_a_node_or_has_its_workers_ended_before_the_grace_is_over() -> None:
    found = [foreign for seed in range(HISTORIES) for foreign in foreign_coordinators(foreign_coordinator_world(seed))]
    assert sum(foreign.asked for foreign in found) > HISTORIES
    assert sum(foreign.would_take for foreign in found) > 0
