"""The lock of the kept state: the training thread holds it to change the state, and a saving thread to save it.

Training owns it from the optimizer's step until `ctx.step` reports the step, so any other owner finds the state of a
whole step. Once the last step of the round is saved, the state is final: a later step would be lost. Training then
blocks where it would acquire the lock, until this process ends or leaves the round.

It is no `threading.Lock`: it is held across calls of the script, and an interrupt has to wake the thread that waits.
"""

from __future__ import annotations

import threading
from enum import Enum, auto

from workerlib.contract.channel_messages import SaveNow
from workerlib.keeping.kept_errors import LeftRoundError


class LockOwner(Enum):
    """The owner of the lock."""

    NOBODY = auto()
    TRAINING = auto()
    """The training thread is within a step."""
    SAVER = auto()
    """The state is saved: by the thread that reads from nodeclient, or by the training thread when training is over."""


class StateLock:
    """Gives the state to one thread at a time, and nodeclient's request to save it to the first thread that asks."""

    def __init__(self) -> None:
        self._mutex = threading.RLock()
        """Acquired instead of `_changed`: a KeyboardInterrupt in `Condition.__enter__` may leave it locked."""
        self._changed = threading.Condition(self._mutex)
        self._owner = LockOwner.NOBODY
        self._request: SaveNow | None = None
        """nodeclient's request that no thread has begun to answer."""
        self._is_interrupted = False
        self.is_final = False
        """Whether the last step of the round is saved, or never will be: training does no further step."""

    @property
    def is_in_step(self) -> bool:
        """Whether training holds the lock."""
        return self._owner is LockOwner.TRAINING

    def acquire(self, owner: LockOwner, within_s: float | None = None) -> bool:
        """Wait for the lock, for ever if `within_s` is None; return whether the owner has it now.

        Raises `LeftRoundError` for the training thread, as `check_in_round` does.
        """
        with self._mutex:
            if not self._changed.wait_for(lambda: self._is_free_for(owner), within_s):
                return False
            if owner is LockOwner.TRAINING:
                self.check_in_round()
            self._owner = owner
            return True

    def _is_free_for(self, owner: LockOwner) -> bool:
        blocks = owner is LockOwner.TRAINING and self.is_final and not self._is_interrupted
        return self._owner is LockOwner.NOBODY and not blocks

    def release(self) -> None:
        """Release the lock."""
        with self._mutex:
            self._owner = LockOwner.NOBODY
            self._changed.notify_all()

    def check_in_round(self) -> None:
        """Raise `LeftRoundError` if `interrupt` was called."""
        if self._is_interrupted:
            raise LeftRoundError

    def interrupt(self) -> None:
        """Have `LeftRoundError` raised in the training thread: at once if it is blocked, else in its next step."""
        with self._mutex:
            self._is_interrupted = True
            self._changed.notify_all()

    def set_request(self, request: SaveNow) -> None:
        """Record that nodeclient requests a save, instead of an earlier request that is not answered yet."""
        with self._mutex:
            self._request = request

    def pop_request(self) -> SaveNow | None:
        """Return the request and clear it, so that only one thread answers it; None if there is none."""
        if self._request is None:
            return None  # the usual case, without the cost of the mutex
        with self._mutex:
            request, self._request = self._request, None
            return request
