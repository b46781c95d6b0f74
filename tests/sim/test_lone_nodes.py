"""A node whose only peer has left goes on to keep newer steps, though nobody copies them any more."""

from __future__ import annotations

import pytest

from tests.sim.lone_nodes import lone_node_world

HISTORIES = 40


@pytest.mark.slow
def test_every_history_of_a_node_whose_only_peer_leaves_keeps_the_invariants() -> None:
    worlds = [lone_node_world(seed) for seed in range(HISTORIES)]
    assert sum(world.invariants.kept.resumed for world in worlds) > HISTORIES / 2
