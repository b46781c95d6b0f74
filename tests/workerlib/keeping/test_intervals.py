"""Tests of the intervals at which a rank saves the state that only it has, and makes digests of what all ranks have."""

import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from workerlib.keeping.intervals import DIGESTS_SHARE_MAX, HEARD_S, STEPS_FIRST, DigestInterval, SaveInterval


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


def digested_steps(begin: int, count: int, step_s: float, digest_s: Callable[[], float]) -> list[int]:
    """Return after which of the `count` steps after `begin` digests are made."""
    interval, now, made = DigestInterval(), 0.0, list[int]()
    for step in range(begin + 1, begin + 1 + count):
        now += step_s
        if interval.is_due(step, now):
            now += (seconds := digest_s())
            interval.record(step, seconds, now)
            made.append(step)
    return made


@pytest.mark.parametrize("digest_s", [0.0001, 0.05, 0.2])
@pytest.mark.parametrize("step_s", [0.02, 3.0])
def test_digests_after_the_first_take_a_small_share_of_the_time(step_s: float, digest_s: float) -> None:
    made = digested_steps(-1, 20_000, step_s, lambda: digest_s)
    least_s = max(digest_s / DIGESTS_SHARE_MAX, HEARD_S)
    pauses = [(after - before) * step_s for before, after in pairwise(made)]
    assert min(pauses) + digest_s >= least_s
    assert max(pauses[1:]) <= max(2 * least_s, step_s)


@pytest.mark.parametrize("seed", range(8))
def test_all_ranks_have_digests_of_some_steps_whatever_they_measure(seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311 - it keeps no secret
    begin, digest_s = draw.randrange(-1, 200), 10 ** draw.uniform(-4, -1)
    made = [
        set(digested_steps(begin, 5_000, 0.1, lambda: digest_s * draw.choice([1, 1, 1.2, 1.5, 3]))) for _ in range(8)
    ]
    common = sorted(set.intersection(*made))
    assert common[0] == begin + 1
    least_s = max(3 * digest_s / DIGESTS_SHARE_MAX, HEARD_S)
    assert max(after - before for before, after in pairwise([*common, begin + 5_000])) <= 8 * least_s / 0.1


def test_one_slow_digest_doubles_the_interval() -> None:
    took = iter([0.001, 0.001, 9.0])
    made = digested_steps(-1, 200, 0.1, lambda: next(took, 0.001))
    assert [after - before for before, after in pairwise(made)][:8] == [16, 16, 32, 16, 16, 16, 16, 16]
