"""Nodes that are to leave and stay for a while: one is drained at a time, and who stays after all has a limit."""

from __future__ import annotations

import pytest

from tests.sim.givers import late_giving_world, undrained_world

HISTORIES = 20


@pytest.mark.slow
def test_every_history_of_late_nodes_that_stay_to_write_keeps_the_invariants() -> None:
    worlds = [late_giving_world(seed) for seed in range(HISTORIES)]
    assert sum(world.laggards.drained for world in worlds if world.laggards is not None) > HISTORIES


@pytest.mark.slow
def test_every_history_of_a_node_that_gives_and_is_undrained_keeps_the_invariants() -> None:
    worlds = [undrained_world(seed) for seed in range(HISTORIES)]
    assert sum(world.invariants.records["NodeUndrained"] for world in worlds) > HISTORIES / 2
