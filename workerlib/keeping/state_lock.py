"""The lock of the kept state: held by the training thread, which changes it, or by a thread that saves it.

Training has it from the optimizer's step until `ctx.step` reports that the step is done, so any other thread gets the
state of a whole step. Once the last step of the round is saved, the state is final: training does not get it again, and
blocks where it needs it. It goes on if this process leaves the round, to take part in the next one.
"""

from __future__ import annotations

import threading
from enum import Enum, auto

from workerlib.contract.channel_messages import SaveNow
from workerlib.keeping.kept_errors import LeftRoundError


class StateHolder(Enum):
    """The holder of the state."""

    NOBODY = auto()
    TRAINING = auto()
    """The training thread is within a step."""
    SAVER = auto()
    """The state is being saved, by the thread that reads from nodeclient, or by the training thread after its end."""


class StateLock:
    """Hands the state to one thread at a time, and nodeclient's save request to the first that takes it."""

    def __init__(self) -> None:
        self._mutex = threading.RLock()
        """Acquired directly: an interrupt in `__enter__` of the condition could leave it locked."""
        self._changed = threading.Condition(self._mutex)
        self._holder = StateHolder.NOBODY
        self._question: SaveNow | None = None
        self._is_left = False
        self.is_final = False
        """Whether the last step of the round is saved, or never will be: training does no further step."""

    @property
    def is_in_step(self) -> bool:
        """Whether training has the state."""
        return self._holder is StateHolder.TRAINING

    def take(self, holder: StateHolder, within_s: float | None = None) -> bool:
        """Wait for the state; return whether the holder has it now. Raises `LeftRoundError` as `check` does."""
        with self._mutex:
            if not (self._is_free_for(holder) or self._changed.wait_for(lambda: self._is_free_for(holder), within_s)):
                return False
            if holder is StateHolder.TRAINING:
                self.check()
            self._holder = holder
            return True

    def _is_free_for(self, holder: StateHolder) -> bool:
        stands_still = holder is StateHolder.TRAINING and self.is_final and not self._is_left
        return self._holder is StateHolder.NOBODY and not stands_still

    def release(self) -> None:
        """Release the state."""
        with self._mutex:
            self._holder = StateHolder.NOBODY
            self._changed.notify_all()

    def check(self) -> None:
        """Check that this worker is still in the round. Raises `LeftRoundError`."""
        if self._is_left:
            raise LeftRoundError

    def leave_round(self) -> None:
        """Have `LeftRoundError` raised in the training thread: at once if it is blocked, else in its next step."""
        with self._mutex:
            self._is_left = True
            self._changed.notify_all()

    # The question

    def ask(self, question: SaveNow) -> None:
        """Record that nodeclient requests a save; an earlier request is not answered any more."""
        with self._mutex:
            self._question = question

    def take_question(self) -> SaveNow | None:
        """Return the request and clear it: the thread that takes it answers it."""
        if self._question is None:
            return None  # the usual case, without the cost of the lock
        with self._mutex:
            question, self._question = self._question, None
            return question
