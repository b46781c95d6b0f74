"""What is decided while the store writes waits for its own records, however slow the store is."""

from __future__ import annotations

import pytest

from tests.sim.slow_stores import slow_store_world

HISTORIES = 40


@pytest.mark.slow
def test_every_history_of_a_slow_store_keeps_the_invariants() -> None:
    worlds = [slow_store_world(seed) for seed in range(HISTORIES)]
    assert sum(world.invariants.records["RoundFormed"] for world in worlds) > 2 * HISTORIES
