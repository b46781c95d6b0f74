"""Leaves word of a training's steps where the node finds it: in a slot of shared memory, see `env`.

To say a step is three stores to memory and a look at the clock, which Linux answers without a system call: a quarter
of a microsecond. The node reads the slots when it speaks to the coordinator anyway. A worker never fails for want of a
slot: where there is none, or none that can be used, what it says is not heard.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import operator
import os
import time

from workerlib.env import PROGRESS, SLOT_BYTES, STEP_MAX, STEPS_TO_COME

_slot: memoryview | None = None
"""The words of this worker's slot, once it has said a step."""


def step(number: int) -> None:
    """Say that this worker has done the step of this number, the last one that counts.

    Count through the whole training, from the step of the checkpoint that it goes on from. Every worker may say each of
    its steps, or only rank 0, or only some: the last one is heard, at the next heartbeat of the node.

    Raises `ValueError` if `number` is negative or above 2**53 - 1, and `TypeError` if it is no integer.
    """
    global _slot  # noqa: PLW0603 - one process has one slot
    if type(number) is not int or not 0 <= number <= STEP_MAX:
        number = _checked(number)
    slot = _slot
    if slot is None:
        # Not when the module is loaded: the parent of warm workers loads it for all of them.
        slot = _slot = _open_slot(os.environ.get(PROGRESS))
    now = time.monotonic_ns()
    # Whole words, unlike what `struct` writes, which clears them first and may store single bytes.
    slot[0] = number
    slot[1] = now
    slot[2] = number ^ now


def announce() -> None:
    """Say that this worker will report its steps: up to the first one it only starts. Once it has, this is no news."""
    global _slot  # noqa: PLW0603 - one process has one slot
    if _slot is None:
        now = time.monotonic_ns()
        _slot = _open_slot(os.environ.get(PROGRESS))
        _slot[0], _slot[1], _slot[2] = STEPS_TO_COME, now, STEPS_TO_COME ^ now


def _checked(number: object) -> int:
    try:
        whole = operator.index(number)  # type: ignore[arg-type]  # it raises for what is none
    except TypeError:
        raise TypeError(f"a step must be an integer, not {type(number).__name__}") from None
    if not 0 <= whole <= STEP_MAX:
        raise ValueError(f"a step must be within 0 and 2**53 - 1, not {whole}")
    return int(whole)


def _open_slot(place: str | None) -> memoryview:
    """Return the words of a slot; if there is none to be had, of memory that nobody reads."""
    if place is not None:
        try:
            return _slot_at(place)
        except (OSError, ValueError) as error:
            logging.getLogger(__name__).warning("the steps of this worker are not reported: %s", error)
    return memoryview(bytearray(SLOT_BYTES)).cast("Q")


def _slot_at(place: str) -> memoryview:
    """Raises `OSError` and `ValueError`."""
    path, _, offset = place.rpartition(":")
    begin = int(offset)
    if begin % SLOT_BYTES:
        raise ValueError(f"{PROGRESS}={place} is not at the beginning of a slot")
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        # Of a file that cannot shrink, so that no store ever meets a page which is not there; and of no other file, if
        # the process that offered it has gone, and its number was given to another.
        if not fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise ValueError(f"{path} may shrink, so it is not memory for steps")
        shared = mmap.mmap(file, 0)
    finally:
        os.close(file)
    if not 0 <= begin < len(shared):
        raise ValueError(f"{path} has no slot at byte {begin}")
    return memoryview(shared)[begin : begin + SLOT_BYTES].cast("Q")
