"""Those ranks are named that have stopped, and no other ones, in training of any parallel layout."""

from __future__ import annotations

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from coordinatord.hints.hang_verdict import find_hang
from tests.support.parallel_training import NEVER, Layout, Stop, Training

LAYOUTS = st.builds(Layout, st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)).filter(
    lambda layout: 1 < len(layout.ranks) <= 16
)

OPERATIONS = 60
"""A rank of most layouts has about so many."""


def leads_of(data: st.DataObject, layout: Layout) -> list[int]:
    """Choose how far each host is ahead; with 1 it waits for each operation, as with gloo."""
    every = st.sampled_from((1, 2, 5, NEVER))
    return data.draw(st.lists(every, min_size=len(layout.ranks), max_size=len(layout.ranks)))


@settings(max_examples=40)
@given(LAYOUTS, st.data(), st.integers(0, OPERATIONS), st.booleans())
def test_a_host_that_stops_is_named_whatever_the_others_have_begun(
    layout: Layout, data: st.DataObject, begun: int, is_silent: bool
) -> None:
    guilty = data.draw(st.sampled_from(layout.ranks))
    training = Training(layout, leads_of(data, layout), {guilty: Stop(begun=begun)})
    found = find_hang(training.seen({guilty} if is_silent else ()))
    assume(found is not None)
    assert found is not None
    assert found.ranks == (guilty,)


@settings(max_examples=40)
@given(LAYOUTS, st.data(), st.integers(0, OPERATIONS), st.integers(0, OPERATIONS))
def test_a_gpu_that_fails_is_named_if_a_collective_is_over_for_others_alone(
    layout: Layout, data: st.DataObject, recorded: int, more: int
) -> None:
    guilty = data.draw(st.sampled_from(layout.ranks))
    training = Training(layout, leads_of(data, layout), {guilty: Stop(done=recorded + more, recorded=recorded)})
    missed = [each for each in training.ranks[guilty].program[recorded:] if each.is_over and each.peer is None]
    assume(any("all_to_all" != each.name != "broadcast" for each in missed))
    found = find_hang(training.seen(()))
    assume(found is not None)
    assert found is not None
    assert found.ranks == (guilty,)
