"""Many short histories of a small cluster in which things go wrong, each from a seed, each checked at every step."""

from __future__ import annotations

import pytest

from tests.support.faults import play

SEEDS_PER_TEST = 25


@pytest.mark.parametrize("first", range(0, 300, SEEDS_PER_TEST))
def test_every_history_keeps_the_laws(first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        try:
            play(seed)
        except Exception as error:
            repeat = f"python -c 'from tests.support.faults import play; play({seed})'"
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}\nto repeat: {repeat}") from error


def test_a_seed_gives_the_same_history_again() -> None:
    first, second = play(7), play(7)
    assert first.now == second.now
    assert first.laws.formed == second.laws.formed
