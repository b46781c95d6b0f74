"""The newest steps on the disk stay, and those that an order names; nobody chooses a step that cannot be read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeclient.core.persist_attempt import StepOnDisk, steps_to_delete

DAMAGED = frozenset({2, 4})


def there(*serials: int, damaged: frozenset[int] = frozenset()) -> list[StepOnDisk]:
    return [StepOnDisk(serial, f"step-{serial}", serial not in damaged) for serial in serials]


@pytest.mark.parametrize(
    ("steps", "keep", "stays", "gone"),
    [
        pytest.param(there(), 2, (), set(), id="an empty disk"),
        pytest.param(there(1, 2), 2, (), set(), id="no more than are kept"),
        pytest.param(there(4, 3, 2, 1), 2, (), {1, 2}, id="the oldest go"),
        pytest.param(there(2, 4, 1, 3), 2, (), {1, 2}, id="in whatever order they are found"),
        pytest.param(there(4, 3, 2, 1), 2, (1,), {2}, id="what is in use stays"),
        pytest.param(there(4, 3, 2, 1), 2, (4,), {1, 2}, id="what is in use is one of those that are kept"),
        pytest.param(there(4, 3, 2, 1), 2, (9,), {1, 2}, id="what is in use is gone already"),
        pytest.param(there(4, 3, 2, 1, damaged=DAMAGED), 2, (), set(), id="a damaged step is none of those kept"),
        pytest.param(there(5, 4, 3, 2, 1, damaged=DAMAGED), 2, (), {1, 2}, id="older ones go, damaged or not"),
        pytest.param(there(5, 4, 3, 2, 1, damaged=DAMAGED), 2, (2,), {1}, id="one in use stays though it is damaged"),
        pytest.param(there(2, 1, damaged=frozenset({1, 2})), 1, (), set(), id="nothing goes if all are damaged"),
        pytest.param(there(3, 2, 2, 1), 2, (), {1}, id="two have the same number"),
    ],
)
def test_which_steps_go(steps: list[StepOnDisk], keep: int, stays: tuple[int, ...], gone: set[int]) -> None:
    assert steps_to_delete(steps, keep, stays) == {f"step-{serial}" for serial in gone}


STEPS = st.lists(
    st.builds(lambda serial, usable: StepOnDisk(serial, f"step-{serial}", usable), st.integers(1, 12), st.booleans()),
    unique_by=lambda step: step.serial,
)


@given(STEPS, st.integers(1, 5), st.lists(st.integers(1, 12), max_size=2).map(tuple))
def test_enough_newer_steps_of_use_stay_for_each_that_goes(
    steps: list[StepOnDisk], keep: int, stays: tuple[int, ...]
) -> None:
    gone = steps_to_delete(steps, keep, stays)
    stay = [step for step in steps if step.folder not in gone]
    for step in steps:
        newer = [other for other in stay if other.usable and other.serial > step.serial]
        assert (step.folder in gone) == (len(newer) >= keep and step.serial not in stays)
