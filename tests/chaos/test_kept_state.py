"""A few seeds of what is killed at random about kept state; hundreds are `python -m benchmarks.kept_chaos`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.kept_chaos import draw, play, undisturbed_training

pytestmark = pytest.mark.slow

SEEDS = (2, pytest.param(1, marks=pytest.mark.long))
"""Workers die in steps and saves, and the coordinator; the other one has ten rounds, and workers that die in a
restoration."""


@pytest.mark.parametrize("seed", SEEDS)
def test_no_state_is_torn_mixed_or_stale_whatever_dies(seed: int, tmp_path: Path) -> None:
    kind = draw(seed).kind
    calm, chaos = tmp_path / "calm", tmp_path / "chaos"
    calm.mkdir()
    chaos.mkdir()
    found = play(seed, chaos, {kind: undisturbed_training(kind, calm)})
    assert found.rounds > 1
