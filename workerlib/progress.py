"""Reports the steps and sections of a training, by a slot of shared memory that nodeclient reads.

By its steps the coordinator sees whether a job gets on or hangs, and how fast it is. A *section* is a phase without
steps that the script has named, such as an evaluation.

`env` has the format of a slot. A report takes a quarter of a microsecond: three stores to memory, and the time, which
needs no system call on Linux. nodeclient reads the slots whenever it sends a message to the coordinator. Without a
usable slot, steps are not reported, and training goes on.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from workerlib import responder
from workerlib.contract.env import (
    DIGEST_AT,
    FIRST_STEP_AT,
    NO_SECTION,
    PROGRESS,
    SECTION_AT,
    SLOT_BYTES,
    SLOTS_NAME,
    STEP_MAX,
    STEPS_TO_COME,
    TRAINED_AT,
    pack_digest,
    pack_section,
)

LOG = logging.getLogger(__name__)

_F_GET_SEALS = 1034
_F_SEAL_SHRINK = 2
"""The numbers in linux/fcntl.h, which `fcntl` lacks in a Python that was built for an old C library."""

_slot: memoryview | None = None
"""The words of this worker's slot; None before their first use."""

_received: int | None = None
"""The descriptor of the slots that nodeclient has sent for this round; None in a new process, which inherits one."""

_step_hook: Callable[[int], None] | None = None
"""Called with each step before it is reported, to keep its state; None if state is not kept."""

_has_warned = False


def step(number: int) -> None:
    """Report that this worker has done the step with this number; the last report counts.

    Count through the whole training, from the step of the checkpoint that it resumes from. Every worker may report each
    of its steps, or only rank 0, or only some: nodeclient sends the last one with its next heartbeat.

    `number` is a whole number from 0 to 2**53 - 1 of any type, such as numpy's or a tensor of one element. Anything
    else is not reported, and a warning is logged once: a wrong report must not end a training.
    """
    global _has_warned  # noqa: PLW0603 - one process is one worker
    if type(number) is not int or not 0 <= number <= STEP_MAX:
        try:
            number = whole_step(number)
        except ValueError as error:
            if not _has_warned:
                _has_warned = True
                LOG.warning("%s; this one is not reported", error)
            return
    if _step_hook is not None:  # first, so that no step is reported whose state is not kept
        _step_hook(number)
    slot = _slot
    if slot is None:
        slot = _own_slot()
    now = time.monotonic_ns()
    # Each store writes a whole word. `struct` would clear the word first, and may store single bytes.
    if not slot[FIRST_STEP_AT]:
        slot[FIRST_STEP_AT] = now
    slot[0] = number
    slot[1] = now
    slot[2] = number ^ now


def last_step() -> int:
    """Return the step that was reported last, -1 before the first one."""
    slot = _slot
    # The time is 0 as long as only a section was reported.
    return -1 if slot is None or not slot[1] or slot[0] == STEPS_TO_COME else slot[0]


@contextmanager
def section(name: str, limit: float) -> Iterator[None]:
    """Name a phase in which no step is done, such as an evaluation, with the most seconds that it takes.

    During that time no alarm is raised for missing steps: see docs/hangs.md. The first 16 bytes of the name are shown.
    A section within another one replaces it while it lasts. One worker may be in a section while others are not. Raises
    `ValueError` for a name that is empty or has control characters, and for a limit that is not a positive number.
    """
    if not (name and name.isprintable() and limit > 0):
        raise ValueError(f"section({name!r}, limit={limit!r}): expected a name, and a limit in seconds above 0")
    slot = _own_slot()
    before = slot[SECTION_AT : SECTION_AT + len(NO_SECTION)].tolist()
    _write(slot, SECTION_AT, pack_section(name, limit, time.monotonic_ns()))
    try:
        yield
    finally:
        _write(slot, SECTION_AT, before)


def is_in_section() -> bool:
    """Whether this worker is in a section."""
    return _slot is not None and _slot[SECTION_AT] != 0


def report_digest(step: int, shard: int, digest: int) -> None:
    """Report the digest of this worker's shard of the state after a step, to be compared with those of replicas."""
    _write(_own_slot(), DIGEST_AT, pack_digest(step, shard, digest))


def _write(slot: memoryview, begin: int, words: Sequence[int]) -> None:
    for at, word in enumerate(words, begin):
        slot[at] = word


def _own_slot() -> memoryview:
    """Return the words of this worker's slot, which is opened at first use: warm workers inherit this loaded module."""
    global _slot  # noqa: PLW0603 - one process has one slot
    if _slot is None:
        responder.begin()
        _slot = _open_slot(os.environ.get(PROGRESS))
    return _slot


def set_step_hook(hook: Callable[[int], None] | None) -> None:
    """Have `hook` called with the number of each step before it is reported; None removes it."""
    global _step_hook  # noqa: PLW0603 - one process keeps one state
    _step_hook = hook


def begin_round(slots: int | None = None) -> None:
    """Use the slot that the environment names now, since this process has entered another round.

    `slots` is the descriptor of the file with the slots, which the next call closes.
    """
    global _slot, _received
    if _received is not None:
        os.close(_received)
    _slot, _received = None, slots


def announce() -> None:
    """Announce that this worker will report its steps, so that it counts as starting until the first one.

    If it has reported a step already, this does nothing.
    """
    now, slot = time.monotonic_ns(), _own_slot()
    if not slot[1]:
        slot[0], slot[1], slot[2] = STEPS_TO_COME, now, STEPS_TO_COME ^ now


def end_training() -> None:
    """Report that the training of this worker is over, though its script may go on."""
    _own_slot()[TRAINED_AT] = 1


def whole_step(number: Any) -> int:
    """Return the step that a number of any type stands for. Raises `ValueError` if it is not a step."""
    with suppress(Exception):  # it may be of any type, and do anything
        whole = int(number)
        if number == whole and 0 <= whole <= STEP_MAX:
            return whole
    shown = f": {number}" if type(number) in (int, float) else ""  # others may be long, or fail to be shown
    raise ValueError(
        f"a step must be a whole number from 0 to 2**53 - 1, not one of type {type(number).__name__}{shown}"
    )


def _open_slot(place: str | None) -> memoryview:
    """Return the words of the slot at a place; if that cannot be used, memory that nothing reads."""
    if place is not None:
        try:
            return _slot_at(place)
        except (OSError, ValueError) as error:
            LOG.warning("the steps of this worker are not reported: %s", error)
    return memoryview(bytearray(SLOT_BYTES)).cast("Q")


def _slot_at(place: str) -> memoryview:
    """Return the words of the slot at a place. Raises `OSError` and `ValueError`."""
    path, _, offset = place.rpartition(":")
    begin = int(offset)
    if begin % SLOT_BYTES:
        raise ValueError(f"{PROGRESS}={place} is not at the beginning of a slot")
    file = _opened(path)
    try:
        # The file must not shrink, so that each store finds its page. The seal also shows that it is nodeclient's file:
        # if nodeclient is gone, the path may lead to a file of another process with its id.
        if not fcntl.fcntl(file, _F_GET_SEALS) & _F_SEAL_SHRINK:
            raise ValueError(f"{path} may shrink, so it is not memory for steps")
        shared = mmap.mmap(file, 0)
    finally:
        os.close(file)
    if not 0 <= begin < len(shared):
        raise ValueError(f"{path} has no slot at byte {begin}")
    return memoryview(shared)[begin : begin + SLOT_BYTES].cast("Q")


def _opened(path: str) -> int:
    """Return a descriptor of the file with the slots. Raises `OSError` and `ValueError`.

    The path leads through nodeclient's descriptors. Following it may fail in another user or PID namespace, as another
    user, or without capabilities; or another process has nodeclient's id there. Then this process's own descriptor is
    used, which was inherited under the same number, or has come for this round.
    """
    own = f"/proc/self/fd/{path.rpartition('/')[2] if _received is None else _received}"
    return os.open(next(filter(_leads_to_slots, (path, own)), path), os.O_RDWR | os.O_CLOEXEC)


def _leads_to_slots(path: str) -> bool:
    try:
        return os.readlink(path).startswith(f"/memfd:{SLOTS_NAME} ")  # noqa: PTH115 - as in `workerlib.gloo`
    except OSError:
        return False
