"""Nodes that are to leave and stay for a while: one is drained at a time, who stays has a limit, or all of them go."""

from __future__ import annotations

import pytest

from tests.sim.givers import late_giving_world, late_newcomer_world, undrained_world
from tests.sim.leavers import leaving_world

HISTORIES = 20


@pytest.mark.slow
def test_every_history_of_late_nodes_that_stay_to_write_keeps_the_invariants() -> None:
    worlds = [late_giving_world(seed) for seed in range(HISTORIES)]
    assert sum(world.laggards.drained for world in worlds if world.laggards is not None) > HISTORIES


@pytest.mark.slow
def test_every_history_of_a_node_that_gives_and_is_undrained_keeps_the_invariants() -> None:
    worlds = [undrained_world(seed) for seed in range(HISTORIES)]
    assert sum(world.invariants.records["NodeUndrained"] for world in worlds) > HISTORIES / 2


@pytest.mark.slow
def test_every_history_of_a_node_that_gives_until_another_one_comes_keeps_the_invariants() -> None:
    worlds = [late_newcomer_world(seed) for seed in range(HISTORIES)]
    assert sum(world.invariants.kept.resumed for world in worlds) > HISTORIES / 2


@pytest.mark.slow
def test_every_history_of_nodes_that_all_go_keeps_the_invariants() -> None:
    worlds = [leaving_world(seed) for seed in range(HISTORIES)]
    assert sum(world.invariants.kept.persisted.written for world in worlds) > HISTORIES
