"""A job is done when all of its workers have succeeded, whatever becomes of nodes that had done their part."""

from __future__ import annotations

import pytest

from tests.sim.finishes import FINISHES, finishing_world

HISTORIES = 40


@pytest.mark.slow
def test_every_history_of_nodes_that_finish_one_after_the_other_keeps_the_invariants() -> None:
    worlds = [finishing_world(seed) for seed in range(HISTORIES)]
    assert {name for world in worlds for name in world.faults} >= set(FINISHES)
    assert sum(world.invariants.done_without for world in worlds) > HISTORIES / 8
