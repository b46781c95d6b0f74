"""Which thread has the state that is kept, and which one answers the question of nodeclient."""

import sys
import threading
from types import FrameType
from typing import Any

import pytest

from tests.support.programs import TIMEOUT_S
from workerlib.contract.channel_messages import SaveNow
from workerlib.keeping.kept_errors import LeftRoundError
from workerlib.keeping.state_lock import LockOwner, StateLock

AT_ONCE = 0.0


@pytest.fixture
def lock() -> StateLock:
    """Return a lock that nobody holds."""
    return StateLock()


def training_that_waits(lock: StateLock) -> tuple[threading.Thread, list[str]]:
    """Return a thread that begins a step, and what came of it."""
    ends: list[str] = []

    def begin_step() -> None:
        try:
            ends.append("begun" if lock.acquire(LockOwner.TRAINING, TIMEOUT_S) else "not begun")
        except LeftRoundError:
            ends.append("left")

    thread = threading.Thread(target=begin_step)
    thread.start()
    return thread, ends


@pytest.mark.parametrize("other", [LockOwner.TRAINING, LockOwner.SAVER])
@pytest.mark.parametrize("owner", [LockOwner.TRAINING, LockOwner.SAVER])
def test_one_thread_at_a_time_has_the_state(lock: StateLock, owner: LockOwner, other: LockOwner) -> None:
    assert lock.acquire(owner)
    assert lock.is_in_step == (owner is LockOwner.TRAINING)
    assert not lock.acquire(other, AT_ONCE)
    lock.release()
    assert not lock.is_in_step
    assert lock.acquire(other)


def test_training_begins_its_step_when_the_save_is_over(lock: StateLock) -> None:
    assert lock.acquire(LockOwner.SAVER)
    thread, ends = training_that_waits(lock)
    lock.release()
    thread.join()
    assert ends == ["begun"]


def test_once_the_last_step_is_saved_no_further_one_begins_and_the_state_can_be_saved_again(lock: StateLock) -> None:
    lock.is_final = True
    assert not lock.acquire(LockOwner.TRAINING, AT_ONCE)
    assert lock.acquire(LockOwner.SAVER)


def test_training_that_stands_still_leaves_the_round_at_once(lock: StateLock) -> None:
    lock.is_final = True
    thread, ends = training_that_waits(lock)
    lock.interrupt()
    thread.join()
    assert ends == ["left"]
    assert lock.acquire(LockOwner.SAVER), "a save waits for it no longer"


def test_training_leaves_the_round_when_the_save_is_over(lock: StateLock) -> None:
    assert lock.acquire(LockOwner.SAVER)
    thread, ends = training_that_waits(lock)
    lock.interrupt()
    assert not lock.acquire(LockOwner.TRAINING, AT_ONCE)
    lock.release()
    thread.join()
    assert ends == ["left"]


def test_a_question_is_answered_by_the_thread_that_comes_first(lock: StateLock) -> None:
    assert lock.pop_request() is None
    lock.set_request(SaveNow(7))
    assert lock.pop_request() == SaveNow(7)
    assert lock.pop_request() is None


@pytest.mark.parametrize("call", range(8))
@pytest.mark.usefixtures("collects_nothing")
def test_an_interrupt_at_any_call_within_it_leaves_the_state_to_be_saved(lock: StateLock, call: int) -> None:
    """Python raises it when a function is entered, or has returned: the thread that saves must not wait for ever."""
    left = call

    def interrupt(_: FrameType, event: str, __: object) -> Any:
        nonlocal left
        if event in {"call", "return"}:
            left -= 1
            if left == -1:
                raise KeyboardInterrupt
        return interrupt

    sys.settrace(interrupt)
    try:
        lock.acquire(LockOwner.TRAINING)
        sys.settrace(None)
    except KeyboardInterrupt:
        sys.settrace(None)
    if lock.is_in_step:
        lock.release()
    saver = threading.Thread(target=lock.acquire, args=(LockOwner.SAVER, AT_ONCE), daemon=True)
    saver.start()
    saver.join(TIMEOUT_S)
    assert not saver.is_alive()
