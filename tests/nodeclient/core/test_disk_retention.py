"""The newest steps on the disk stay, and those that an order names; nobody chooses a step that cannot be read."""

from hypothesis import given
from hypothesis import strategies as st

from nodeclient.core.persist_attempt import StepOnDisk, steps_to_delete


@given(
    st.lists(st.tuples(st.integers(1, 5), st.booleans()), max_size=8),
    st.integers(1, 3),
    st.lists(st.integers(1, 5), max_size=2).map(tuple),
)
def test_enough_newer_steps_of_use_stay_for_each_that_goes(
    found: list[tuple[int, bool]], keep: int, stays: tuple[int, ...]
) -> None:
    steps = [StepOnDisk(serial, f"folder-{number}", usable) for number, (serial, usable) in enumerate(found)]
    gone = steps_to_delete(steps, keep, stays)
    stay = [step for step in steps if step.folder not in gone]
    for step in steps:
        newer = [other for other in stay if other.usable and other.serial > step.serial]
        assert (step.folder in gone) == (len(newer) >= keep and step.serial not in stays)
