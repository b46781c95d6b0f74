"""A step of which ranks have different states is resumed from by nobody."""

from __future__ import annotations

import pytest

from tests.sim.differing_states import differing_world

HISTORIES = 40


@pytest.mark.slow
def test_every_history_of_ranks_with_different_states_keeps_the_invariants() -> None:
    worlds = [differing_world(seed) for seed in range(HISTORIES)]
    assert any(world.invariants.kept.useless.differing for world in worlds)
    assert sum(world.invariants.kept.resumed for world in worlds) > HISTORIES / 4
