"""The slots of shared memory in which the workers of a node leave word of their steps; their layout is in workerlib.

They are memory without a name in any file system: no disk can be slow about it or full, nothing can remove it, and it
goes with the last process that has it. Its size is sealed, so neither side can take it from the other. What workers
write is evidence from outside: what is read here is within bounds, whatever it is that they wrote.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from dataclasses import replace

from coordinatord.protocol.fields import DURATION_S_MAX, STEP_MAX
from coordinatord.protocol.messages import Observed
from nodeclient.workers import syscalls
from workerlib.env import PROGRESS, SLOT_BYTES, STEPS_TO_COME

_NAME = "coordinatord-steps"
"""For people who look into /proc."""

_WORD_BYTES = 8

_OVER = 3
"""The word of a slot that says that its worker's program is over."""

_EXIT_CODE_MAX = 255

_SEALS = syscalls.F_SEAL_SHRINK | syscalls.F_SEAL_GROW | syscalls.F_SEAL_SEAL


class Slots:
    """The slots of a node's workers, new ones for each round; nothing of an older round can write into them."""

    def __init__(self, workers: int, complain: Callable[[str], None]) -> None:
        """`complain` is told, once, if there are no slots to be had; the workers' steps are not known then."""
        self._workers = workers
        self._complain = complain
        self._complained = False
        self._file: int | None = None
        self._round = ("", 0)
        self._read: list[tuple[int, int] | None] = []
        """Of each worker the last step that it reported, and when."""
        self._to_come = False
        """A worker has said that it will report steps."""

    def begin(self, run: str, number: int) -> list[dict[str, str]]:
        """Have empty slots for a round; return what tells each worker of its own, by local rank."""
        self.close()
        self._round = (run, number)
        self._read = [None] * self._workers
        self._to_come = False
        try:
            self._file = _memory(self._workers * SLOT_BYTES)
        except OSError as error:
            if not self._complained:
                self._complain(f"the steps of the workers cannot be known: no shared memory, {error.strerror}")
            self._complained = True
            return [{}] * self._workers
        # The link of an open file, as a worker may be started by whatever closes descriptors that it does not know.
        path = f"/proc/{os.getpid()}/fd/{self._file}"
        return [{PROGRESS: f"{path}:{rank * SLOT_BYTES}"} for rank in range(self._workers)]

    def complete(self, observed: Observed) -> Observed:
        """Return what a node says of itself with the steps of its workers, if it speaks of their round."""
        if (observed.run, observed.round) != self._round:
            return observed
        self._look()
        known = [read for read in self._read if read is not None]
        if not known:
            return replace(observed, steps=(None,) * self._workers) if self._to_come else observed
        age_s = (time.monotonic_ns() - max(at for _, at in known)) / 1e9
        return replace(
            observed,
            steps=tuple(None if read is None else read[0] for read in self._read),
            step_age_s=min(max(age_s, 0.0), DURATION_S_MAX),
        )

    def over(self) -> dict[int, int]:
        """Return the exit codes of the programs that are known to be over, by local rank."""
        fields = self._fields()
        over = {rank: fields[(rank * SLOT_BYTES) // _WORD_BYTES + _OVER] for rank in range(self._workers) if fields}
        return {rank: word - 1 for rank, word in over.items() if 0 < word <= _EXIT_CODE_MAX + 1}

    def close(self) -> None:
        """Let go of the slots."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _look(self) -> None:
        fields = self._fields()
        for rank in range(self._workers) if fields else ():
            step, at, check = fields[rank * SLOT_BYTES // _WORD_BYTES :][:_OVER]
            # What does not belong together is being written right now: it is whole at the next look.
            if at and step ^ at == check:
                if step <= STEP_MAX:
                    self._read[rank] = (step, at)
                self._to_come |= step == STEPS_TO_COME

    def _fields(self) -> list[int]:
        """Return what is in the slots; nothing where there are none."""
        if self._file is None:
            return []
        return memoryview(os.pread(self._file, self._workers * SLOT_BYTES, 0)).cast("Q").tolist()


def _memory(size: int) -> int:
    """Return a file of zeros in memory, of this size for ever. Raises `OSError`."""
    file = syscalls.memfd_create(_NAME, syscalls.MFD_CLOEXEC | syscalls.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(file, 0, size)  # now, so that no worker meets a lack of memory
        fcntl.fcntl(file, syscalls.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(file)
        raise
    return file
