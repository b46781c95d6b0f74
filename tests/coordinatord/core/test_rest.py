"""When the workers of a round are at rest, by their arrivals in collectives."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from coordinatord.core.values.lateness import NodeArrivals
from coordinatord.core.values.rest import are_at_rest
from coordinatord.protocol.arrival_messages import GroupArrivals, WorkerArrivals, pack_ages

Groups = Sequence[Sequence[float]]


def at_rest(*workers: Groups) -> bool | None:
    """Judge by how long ago each worker came to the last collectives of each of its groups."""
    told = tuple(
        WorkerArrivals(
            rank, tuple(GroupArrivals(f"gloo {name}", 1, pack_ages(ages)) for name, ages in enumerate(groups))
        )
        for rank, groups in enumerate(workers)
    )
    return are_at_rest([NodeArrivals(f"n{worker.rank}", 0.0, 0.0, 0.0, (worker,)) for worker in told])


@pytest.mark.parametrize(
    ("ages", "expected"),
    [
        pytest.param([10.0], True, id="ten seconds are long"),
        pytest.param([9.9], False, id="less than ten seconds are not"),
        pytest.param([23.0, 22.0, 20.0], True, id="ten times the longest pause"),
        pytest.param([22.0, 21.0, 19.0], False, id="less than ten times the longest pause"),
        pytest.param([60.0, 40.0], True, id="twice a pause that was long itself"),
        pytest.param([59.0, 39.0], False, id="less than twice a pause that was long itself"),
        pytest.param([], None, id="nobody tells"),
    ],
)
def test_workers_are_at_rest_when_they_come_to_none_for_much_longer_than_is_usual(
    ages: list[float], expected: bool | None
) -> None:
    assert at_rest([ages]) is expected


def test_the_worker_counts_that_came_last() -> None:
    assert at_rest([[90.0]], [[]], [[3.0, 2.0]]) is False
    assert at_rest([[90.0]], [[50.0, 49.0]]) is True


def test_a_worker_comes_to_collectives_of_several_groups() -> None:
    assert at_rest([[20.0, 12.0], [16.0]]) is False, "four seconds are usual"
    assert at_rest([[60.0, 52.0], [56.0]]) is True
