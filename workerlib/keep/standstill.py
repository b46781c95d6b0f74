"""Where training stands still before a planned end, so that all ranks keep the same step without a word to each other.

nodeclient asks first how far training has come. From then on the training thread stands still at the end of the step
that it is in, and the answer says which step that is. The coordinator names the furthest of these steps. No rank has
passed it, and all can come to it: what the others need of a rank for a step, it has given before it stands still.
"""

from __future__ import annotations

import threading

from workerlib.keep.channel_messages import BEFORE_NAMED, HaltAt


class Standstill:
    """Holds the training thread between two steps; the other methods are for the thread that listens."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._halt: HaltAt | None = None
        self._passed = -1
        """The last step after which training went on, or will."""
        self._stride = 1
        """The number of the step at which it may stand still next, less that of the last one."""
        self._at: int | None = None
        """The step after which it stands still at present."""

    def begin(self, step: int) -> None:
        """Note the step from which training goes on."""
        self._passed = step

    def ask(self, halt: HaltAt) -> int:
        """Let training go no further than this; return the step that it stands still after, as far as can be known.

        If steps are left out, it may come later. All workers leave out the same ones, and stand still after the same.
        """
        with self._changed:
            self._halt = halt
            self._changed.notify_all()
            return self._passed + self._stride if self._at is None else self._at

    def end(self) -> None:
        """Note that training is over: it goes no further than it is."""
        with self._changed:
            self._at = self._passed

    def release(self) -> None:
        """Let training go on: nobody will say how far any more."""
        with self._changed:
            self._halt = None
            self._changed.notify_all()

    def leave(self, step: int) -> HaltAt | None:
        """Leave the end of a step as soon as training may go on; return who wants that step kept as the last one."""
        with self._changed:
            if step > self._passed >= 0:
                self._stride = step - self._passed
            self._at = step
            while self._halt is not None and self._halt.step == BEFORE_NAMED:
                self._changed.wait()
            self._at, self._passed = None, step
            return self._halt if self._halt is not None and step >= self._halt.step else None
