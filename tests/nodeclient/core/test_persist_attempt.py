"""What a node reports of a write to the disk, and which steps it deletes there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from coordinatord.protocol.kept_state import PersistOrder, PersistState, WantedParts
from nodeclient.core.persist_attempt import PersistAttempt, Stage, StepOnDisk, steps_to_delete

PART = WantedParts(0, 1, big=True, small=True)

WRITE = PersistOrder(1, 4, 1, 1, (PART,), commit=False)

COMMIT = replace(WRITE, commit=True, stays=(3,), small=1)


def reported(attempt: PersistAttempt) -> tuple[Stage, PersistState]:
    return attempt.stage, attempt.report(0).state


def test_a_step_is_made_whole_once_it_is_written_and_that_is_wanted() -> None:
    attempt = PersistAttempt("r-1", WRITE)
    assert reported(attempt) == (Stage.WRITING, PersistState.WRITING)
    attempt.record_order(COMMIT)
    assert not attempt.begin_commit()
    attempt.record_written()
    assert reported(attempt) == (Stage.WRITTEN, PersistState.WRITTEN)
    assert attempt.begin_commit()
    assert reported(attempt) == (Stage.COMMITTING, PersistState.WRITTEN)
    assert not attempt.begin_commit(), "it is begun once"
    attempt.record_committed()
    assert reported(attempt) == (Stage.COMMITTED, PersistState.COMMITTED)
    assert not attempt.begin_commit()


def test_an_older_order_that_comes_late_lets_no_step_be_deleted() -> None:
    attempt = PersistAttempt("r-1", WRITE)
    newer = replace(COMMIT, stays=(3, 4))
    for order in (COMMIT, newer, WRITE):
        attempt.record_order(order)
    assert attempt.order == newer


def test_a_node_that_is_not_told_to_does_not_make_the_step_whole() -> None:
    attempt = PersistAttempt("r-1", WRITE)
    attempt.record_written()
    assert not attempt.begin_commit()
    assert reported(attempt) == (Stage.WRITTEN, PersistState.WRITTEN)


@pytest.mark.parametrize("order", [WRITE, COMMIT])
def test_what_cannot_be_done_is_reported_and_not_done_again(order: PersistOrder) -> None:
    attempt = PersistAttempt("r-1", order)
    if order.commit:
        attempt.record_written()
        assert attempt.begin_commit()
    attempt.fail("the disk is full")
    assert reported(attempt) == (Stage.FAILED, PersistState.FAILED)
    assert attempt.report(0).problem == "the disk is full"
    assert not attempt.begin_commit()


@pytest.mark.parametrize(
    ("run", "order", "same"),
    [
        ("r-1", WRITE, True),
        ("r-1", COMMIT, True),
        ("r-1", replace(COMMIT, stays=()), True),
        ("r-2", WRITE, False),
        ("r-1", replace(WRITE, step=5), False),
        ("r-1", replace(WRITE, round=2), False),
        ("r-1", replace(WRITE, parts=()), False),
        ("r-1", replace(WRITE, attempt=2), False),
    ],
)
def test_only_another_step_or_other_parts_are_other_work(run: str, order: PersistOrder, *, same: bool) -> None:
    assert PersistAttempt("r-1", WRITE).is_for(run, order) is same
    assert PersistAttempt("r-1", COMMIT).is_for(run, order) is same


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
