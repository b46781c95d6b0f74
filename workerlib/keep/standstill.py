"""Where training stands still before a planned end, so that all ranks keep the same step without communication.

nodeclient asks first how far training has come. From then on the training thread stands still at the end of its current
step, and the answer is the number of that step. The coordinator names the furthest of these steps. No rank has passed
it, and all can come to it: a rank has given its part of a step to the others before it stands still at the end.
"""

from __future__ import annotations

import threading

from workerlib.keep.channel_messages import BEFORE_NAMED, HaltAt


class Standstill:
    """Holds the training thread between two steps. That thread calls `leave`, and others call the other methods."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._halt: HaltAt | None = None
        self._passed = -1
        """The last step after which training went on, or will."""
        self._stride = 1
        """The number of the next step at which training may stand still, less that of the last one."""
        self._at: int | None = None
        """The step after which training stands still now; None while it goes on."""

    def begin(self, step: int) -> None:
        """Note the step from which training goes on."""
        self._passed = step

    def ask(self, halt: HaltAt) -> int:
        """Let training go no further than `halt`; return the step after which it probably stands still.

        If the script leaves steps out, it may be a later one. All workers leave out the same steps, so they stand still
        after the same one.
        """
        with self._changed:
            self._halt = halt
            self._changed.notify_all()
            return self._passed + self._stride if self._at is None else self._at

    def end(self) -> None:
        """Note that training is over: no step follows."""
        with self._changed:
            self._at = self._passed

    def release(self) -> None:
        """Let training go on without a limit."""
        with self._changed:
            self._halt = None
            self._changed.notify_all()

    def leave(self, step: int) -> HaltAt | None:
        """Wait at the end of a step until training may go on; return the order to keep this step as the last one."""
        with self._changed:
            if step > self._passed >= 0:
                self._stride = step - self._passed
            self._at = step
            while self._halt is not None and self._halt.step == BEFORE_NAMED:
                self._changed.wait()
            self._at, self._passed = None, step
            return self._halt if self._halt is not None and step >= self._halt.step else None
