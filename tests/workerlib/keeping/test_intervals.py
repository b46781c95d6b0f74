"""Tests of the interval at which a rank saves the state that only it has."""

import random
from itertools import pairwise

import pytest

from workerlib.keeping.intervals import DIGESTS_SHARE_MAX, STEPS_FIRST, SaveInterval


def saved_steps(interval: SaveInterval, begin: int, count: int, step_s: float, save_s: list[float]) -> list[int]:
    """Return which of the `count` steps after `begin` are saved; the saves take `save_s`, the last one again and again.

    Steps take `step_s` each.
    """
    saved: list[int] = []
    for step in range(begin + 1, begin + 1 + count):
        if interval.end_step(step, step * step_s):
            interval.record_save(save_s[min(len(saved), len(save_s) - 1)])
            saved.append(step)
        interval.begin_step(step, step * step_s)
    return saved


@pytest.mark.parametrize("seed", range(40))
def test_all_ranks_save_a_step_in_the_last_two_thirds_of_a_round(seed: int) -> None:
    """Whatever they measure: each save may take next to nothing or hours."""
    draw = random.Random(seed)  # noqa: S311 - it keeps no secret
    begin, count, ranks = draw.randrange(-1, 200), 300, range(8)
    saved = [
        set(saved_steps(SaveInterval(), begin, count, 1.0, draw.choices([1e-9, 0.03, 0.3, 1e9], k=count)))
        for _ in ranks
    ]
    common, newest = set.intersection(*saved), begin
    for done in range(1, count + 1):
        newest = begin + done if begin + done in common else newest
        assert begin + done - newest <= max(STEPS_FIRST - 1, 2 * done / 3)


def test_saves_take_one_hundredth_of_the_time_at_most() -> None:
    saved = saved_steps(SaveInterval(), -1, 2_000, 0.1, [0.15])
    assert saved[:8] == [0, 4, 8, 16, 32, 64, 128, 256]
    assert {after - before for before, after in pairwise(saved[7:])} == {256}


def test_digests_take_half_as_much_of_the_time() -> None:
    made = saved_steps(SaveInterval(DIGESTS_SHARE_MAX), -1, 3_000, 0.1, [0.15])
    assert {after - before for before, after in pairwise(made[8:])} == {512}


def test_the_first_save_makes_saves_no_rarer() -> None:
    assert saved_steps(SaveInterval(), 1, 8, 0.1, [100.0, 0.001]) == [4, 8, 9]


def test_a_slow_save_at_most_doubles_the_interval() -> None:
    assert saved_steps(SaveInterval(), 1, 9, 0.1, [0.001, 0.001, 100.0, 0.001]) == [4, 5, 6, 8, 9, 10]


def test_steps_are_saved_whatever_numbers_are_left_out() -> None:
    interval, saved = SaveInterval(), []
    for step in range(9, 1_000, 10):
        if interval.end_step(step, step * 0.1):
            interval.record_save(0.16)
            saved.append(step)
        interval.begin_step(step, step * 0.1)
    assert saved == [19, 29, 39, 49, 69, 129, 259, 519, 769]


def test_the_longest_of_the_least_times_between_two_saves_counts() -> None:
    interval = SaveInterval()
    for least_s in (1.6, 0.4):
        interval.raise_pause(least_s)
    saved_steps(interval, 0, 100, 0.1, [0.001])
    assert interval.steps == 16
