"""Nodes that arrive while a job trains wait for its next checkpoint, and no longer."""

from __future__ import annotations

import pytest

from tests.sim.checkpoint_waits import checkpoint_waiting_world

HISTORIES = 40


@pytest.mark.slow
def test_every_history_of_nodes_that_wait_for_a_checkpoint_keeps_the_invariants() -> None:
    worlds = [checkpoint_waiting_world(seed) for seed in range(HISTORIES)]
    assert sum(world.invariants.kept.waits.ended for world in worlds) > HISTORIES / 2
