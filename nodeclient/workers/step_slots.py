"""Reads workers' steps from slots: 128 bytes of shared memory for each worker, whose layout workerlib defines.

A worker writes its step into its slot at almost no cost, and the node reads the step when it has a report to send. The
memory has no name in any file system, so no disk is involved, and the kernel frees it with the last process that has
it. Its size is sealed, so no side can shrink it. Values of workers are not trusted, but checked against limits.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from msgspec.structs import replace

from coordinatord.protocol.fields import DURATION_S_MAX, RANKS_MAX, STEP_MAX
from coordinatord.protocol.kept_state import DIGESTS_MAX, StateDigest
from coordinatord.protocol.messages import SECTION_NAME_MAX, Observed, Section
from coordinatord.protocol.text import clip
from nodeclient.host import syscalls
from workerlib.contract.env import (
    CODE_AT,
    DIGEST_AT,
    DIGEST_WORDS,
    FIRST_STEP_AT,
    NO_SECTION,
    OVER_AT,
    PROGRESS,
    SECTION_AT,
    SLOT_BYTES,
    SLOTS_NAME,
    STEPS_TO_COME,
    TRAINED_AT,
    unpack_digest,
    unpack_section,
)

_SLOT_WORDS = SLOT_BYTES // 8


class Slots:
    """The slots of a node's workers. Each round has new ones, so no process of an older round can write to them."""

    def __init__(self, workers: int, warn: Callable[[str], None]) -> None:
        """Begin without slots. If none can be made, `warn` is called once, and the workers' steps are unknown."""
        self._workers = workers
        self._warn = warn
        self._warned = False
        self.file: int | None = None
        """The descriptor of the memory; None if there is none."""
        self._round = ("", 0)
        self._steps: list[tuple[int, int] | None] = []
        """The last reported step of each worker, and its time in nanoseconds of the monotonic clock."""
        self._stepped_twice = False
        """Whether a worker has reported two steps or more."""
        self._are_announced = False
        """Whether a worker has announced that it will report steps."""
        self._sections: list[tuple[str, int, int] | None] = []
        """The section of each worker: its name, its limit in seconds, and its start in the same clock."""
        self._digests: list[StateDigest | None] = []
        """The last digest of each worker's state."""

    def begin(self, run: str, number: int) -> list[dict[str, str]]:
        """Make empty slots for a round; return the variables with each worker's slot, by local rank."""
        self.close()
        self._round = (run, number)
        self._steps = [None] * self._workers
        self._stepped_twice, self._are_announced = False, False
        self._sections = [None] * self._workers
        self._digests = [None] * self._workers
        try:
            self.file = _memory(self._workers * SLOT_BYTES)
        except OSError as error:
            if not self._warned:
                self._warn(f"the steps of the workers cannot be known: no shared memory, {error.strerror}")
            self._warned = True
            return [{}] * self._workers
        # A path, since a program that starts the worker may close inherited descriptors. A worker that may not open the
        # path, as in a container, uses the inherited descriptor of this number.
        path = f"/proc/{os.getpid()}/fd/{self.file}"
        return [{PROGRESS: f"{path}:{local_rank * SLOT_BYTES}"} for local_rank in range(self._workers)]

    def complete(self, observed: Observed) -> Observed:
        """Return a node's report with the steps and the section of its workers, if it is about their round."""
        if (observed.run, observed.round) != self._round:
            return observed
        self._read()
        observed = replace(observed, section=self._section())
        known = [step for step in self._steps if step is not None]
        if not known:
            return replace(observed, steps=(None,) * self._workers) if self._are_announced else observed
        age_s = (time.monotonic_ns() - max(at for _, at in known)) / 1e9
        return replace(
            observed,
            steps=tuple(None if step is None else step[0] for step in self._steps),
            step_age_s=min(max(age_s, 0.0), DURATION_S_MAX),
            stepped_twice=self._stepped_twice,
            digests=tuple(self._digests) if any(self._digests) and self._workers <= DIGESTS_MAX else (),
        )

    def _section(self) -> Section | None:
        """Return the section that reaches its limit last; None if no worker is in a section."""
        known = [(local_rank, *section) for local_rank, section in enumerate(self._sections) if section is not None]
        if not known:
            return None
        local_rank, name, limit, began = max(known, key=lambda section: section[3] + section[2] * 10**9)
        age_s, limit_s = (time.monotonic_ns() - began) / 1e9, float(min(limit, DURATION_S_MAX))
        return Section(clip(name, SECTION_NAME_MAX) or "?", limit_s, min(max(age_s, 0.0), DURATION_S_MAX), local_rank)

    def exit_codes(self) -> dict[int, int]:
        """Return the known exit codes of the programs that are over, even if their processes live, by local rank.

        A worker writes the code twice, into two bytes, or two unequal bytes if the code is not known yet. Only then
        does it write that its program is over.
        """
        over = ((local_rank, slot[CODE_AT]) for local_rank, slot in enumerate(self._slots()) if slot[OVER_AT])
        codes = ((local_rank, word.to_bytes(8, sys.byteorder)[:2]) for local_rank, word in over)
        return {local_rank: code for local_rank, (code, again) in codes if code == again}

    def over_s(self, local_rank: int) -> float:
        """Return how long the program of a worker has been over, in seconds; 0 if that is not known."""
        over_at = slots[local_rank][OVER_AT] if (slots := self._slots()) else 0
        return min(max((time.monotonic_ns() - over_at) / 1e9, 0.0), DURATION_S_MAX) if over_at else 0.0

    def training_is_over(self) -> bool:
        """Whether each worker has reported that its training is over."""
        slots = self._slots()
        return bool(slots) and all(slot[TRAINED_AT] for slot in slots)

    def close(self) -> None:
        """Release the slots."""
        if self.file is not None:
            os.close(self.file)
            self.file = None

    def _read(self) -> None:
        """Read all slots. If a worker is just writing a value, the value that was read before stays."""
        for local_rank, slot in enumerate(self._slots()):
            step, at, check = slot[:CODE_AT]
            if at and step ^ at == check:  # all three words are of the same report
                if step <= STEP_MAX:
                    self._steps[local_rank] = (step, at)
                    self._stepped_twice |= 0 < slot[FIRST_STEP_AT] < at  # this step is later than the first one
                self._are_announced |= step == STEPS_TO_COME
            with suppress(ValueError):
                self._sections[local_rank] = unpack_section(slot[SECTION_AT : SECTION_AT + len(NO_SECTION)])
            with suppress(ValueError):
                self._digests[local_rank] = _digest_of(unpack_digest(slot[DIGEST_AT : DIGEST_AT + DIGEST_WORDS]))

    def _slots(self) -> list[list[int]]:
        """Return the words of each worker's slot; an empty list if there are no slots."""
        if self.file is None:
            return []
        words = memoryview(os.pread(self.file, self._workers * SLOT_BYTES, 0)).cast("Q").tolist()
        return [words[begin : begin + _SLOT_WORDS] for begin in range(0, len(words), _SLOT_WORDS)]


def _digest_of(found: tuple[int, int, int] | None) -> StateDigest | None:
    """Return a digest as it is reported; None for none, and for a step or a shard that cannot be."""
    if found is None or found[0] > STEP_MAX or found[1] > RANKS_MAX:
        return None
    return StateDigest(*found)


def _memory(size: int) -> int:
    """Return a file of zeros in memory, of a fixed size. Raises `OSError`."""
    file = syscalls.memory_file(SLOTS_NAME)
    try:
        os.posix_fallocate(file, 0, size)  # now, so that no worker meets a lack of memory
        syscalls.seal_size(file)
    except BaseException:
        os.close(file)
        raise
    return file
