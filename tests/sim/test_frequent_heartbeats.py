"""Looks at workers that hang are apart, however often nodes send heartbeats."""

from __future__ import annotations

import pytest

from tests.sim.frequent_heartbeats import often_heard_world

HISTORIES = 20


@pytest.mark.slow
def test_every_history_of_hangs_with_frequent_heartbeats_keeps_the_invariants() -> None:
    worlds = [often_heard_world(seed) for seed in range(HISTORIES)]
    assert sum(world.invariants.hangs.named for world in worlds) > HISTORIES / 4
