"""Parts of a step are whole when each shard has a holder, however ranks and shards are numbered."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinatord.core.keeping.shards import Coverage, are_whole, cover
from coordinatord.protocol.kept_state import KeptParts
from tests.support.kept_state import kept_parts


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        pytest.param([], False, id="nothing"),
        pytest.param([kept_parts(1, 9, range(2, 3), world_size=4)], True, id="one rank has all that each has"),
        pytest.param([kept_parts(1, 9, range(4), world_size=4, shards=4)], True, id="all shards on one node"),
        pytest.param([kept_parts(1, 9, range(3), world_size=4, shards=4)], False, id="the last shard has no holder"),
        pytest.param([kept_parts(1, 9, range(1, 3), world_size=4, shards=2)], True, id="shards go on from the first"),
        pytest.param([kept_parts(1, 9, range(1), big=False)], False, id="small state alone"),
        pytest.param(
            [kept_parts(1, 9, range(1), world_size=2), kept_parts(1, 9, range(1, 2), world_size=2, shards=2)],
            False,
            id="ranks that do not agree on the shards",
        ),
    ],
)
def test_a_step_is_whole_when_each_shard_has_a_holder(parts: list[KeptParts], whole: bool) -> None:
    assert are_whole([parts]) is whole


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 10))), st.integers(1, 8))
def test_ranges_cover_what_their_numbers_do(ranges: list[tuple[int, int]], shards: int) -> None:
    named = {number for begin, end in ranges for number in range(begin, end)}
    ranges = [(begin, end) for begin, end in ranges if begin <= end]
    assert cover(ranges, shards) is (set(range(shards)) <= named)


@given(st.integers(1, 6), st.integers(1, 24), st.data())
def test_consecutive_parts_have_the_shards_that_their_ranks_have(shards: int, world: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, world - 1))
    ranks = range(first, data.draw(st.integers(first + 1, world)))
    parts = kept_parts(1, 9, ranks, world_size=world, shards=shards)
    assert are_whole([[parts]]) is ({rank % shards for rank in ranks} == set(range(shards)))


PARTS = st.builds(
    lambda first, ranks, shards, world, big: kept_parts(
        1, 9, range(first, min(first + ranks, world)), world_size=world, shards=shards, big=big
    ),
    st.integers(0, 3),
    st.integers(1, 4),
    st.sampled_from((1, 3, 4)),
    st.sampled_from((4, 5)),
    st.booleans(),
)


@given(st.lists(st.tuples(st.integers(0, 3), st.lists(PARTS, max_size=2)), max_size=12))
def test_parts_that_come_and_go_are_whole_when_all_of_them_are(changes: list[tuple[int, list[KeptParts]]]) -> None:
    coverage, held = Coverage(), dict[int, list[KeptParts]]()
    for node, parts in changes:
        big = [part for part in parts if part.big]
        coverage.replace(held.get(node, []), big)
        held[node] = big
        assert coverage.is_whole is are_whole(held.values())
        for one in held:
            others = [parts for each, parts in held.items() if each != one]
            assert coverage.is_whole_without(held[one]) is are_whole(others)
        assert coverage.is_whole is are_whole(held.values())
