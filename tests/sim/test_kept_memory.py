"""The simulated memory of kept state: what a worker writes that dies is not whole, as in life."""

from __future__ import annotations

import pytest

from tests.sim.kept_copies import COPY_S, Keeps
from tests.sim.kept_memory import KeptMemory
from tests.sim.scenario import Scenario, Workers
from tests.sim.world import World

PAIR = Scenario(
    hosts=2,
    nodes_min=2,
    nodes_max=2,
    arrive_within_s=0.5,
    skips_idle=False,
    keeps=Keeps.UNIQUE,
    workers=Workers(first_step_s=0.0, stubborn=0.0, slow_to_die=0.0),
)


def begun(memory: KeptMemory) -> list[int]:
    """Return the places that are being written."""
    return [number for number, place in enumerate(memory.places) if place is not None and not place.whole]


@pytest.mark.parametrize("others", [False, True])
def test_a_save_becomes_whole_unless_its_node_has_other_workers_by_then(others: bool) -> None:
    world = World(1, PAIR)
    world.boot()
    world.until(world.is_running, within=30)
    host = world.hosts["n1"]
    memory = host.memory
    assert memory is not None
    world.until(lambda: bool(begun(memory)), within=10)
    [place] = begun(memory)
    host.workers.starts += others
    stored = memory.places[place]
    world.go_on(COPY_S)
    now = memory.places[place]
    assert (now is stored) is others
