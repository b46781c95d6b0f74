"""A few seeds of what is killed at random about kept state; hundreds are `python -m benchmarks.kept_chaos`."""

from pathlib import Path

import pytest

from tests.support.kept_chaos import draw, play, undisturbed_training

pytestmark = [pytest.mark.slow, pytest.mark.long]

SEEDS = (1, 2)
"""Workers die in ten rounds of the first one, also while they restore; the coordinator dies in the second one too."""


@pytest.mark.parametrize("seed", SEEDS)
def test_no_state_is_torn_mixed_or_stale_whatever_dies(seed: int, tmp_path: Path) -> None:
    kind = draw(seed).kind
    calm, chaos = tmp_path / "calm", tmp_path / "chaos"
    calm.mkdir()
    chaos.mkdir()
    found = play(seed, chaos, {kind: undisturbed_training(kind, calm)})
    assert found.rounds > 1
