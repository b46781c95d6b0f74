"""How often state is saved that only this rank has, so that saves take at most one hundredth of the time.

The interval is a power of two, and steps that it divides are saved. So ranks need not agree: if their intervals differ,
the steps that the largest one divides are common to all.
"""

from __future__ import annotations

from workerlib.keep.channel_messages import Interval

DISK_SHARE = 0.25
"""The part of the time between two steps on a disk after which state that all ranks share is saved: the written step is
at most that much older than it could be."""

SHARE_MAX = 0.01
"""The part of training's time that saves may take."""

HEARD_S = 1.5
"""The least time between two saves where several nodes have to agree on a step, in seconds. A node is heard once a
second, and a step that was saved over before all were heard is never agreed on."""

STEPS_MAX = 1 << 20

GROWTH_MAX = 4
"""How many times longer one save can make the interval. A single save may be slow by chance, and the first one touches
new memory. The next save corrects the interval; without this limit, it could come minutes later."""

STEPS_BEFORE = 4
"""The steps that are timed before the first interval is chosen."""

FIRST_TOUCH_BYTES_S = 0.7e9
"""Bytes a second of a first copy into new memory; 0.7 to 0.9 GB/s were measured on two busy cores."""

WEIGHT = 0.2
"""The weight of the last step in the mean time of a step."""


class SaveInterval:
    """Measures steps and saves, and decides at which steps to save."""

    def __init__(self) -> None:
        self.steps = 0
        """The interval in steps; 0 until it is known."""
        self._least_s = 0.0
        self._step_s: float | None = None
        self._timed = 0
        self._save_s = 0.0
        self._began_at: float | None = None
        self._skipped = 0
        self._reported = Interval(0, 0.0, 0)

    def raise_least(self, seconds: float) -> None:
        """Raise the least time between two saves, which begins at 0, to `seconds` if it is shorter."""
        self._least_s = max(self._least_s, seconds)

    def begin_step(self, now: float) -> None:
        """Note when a step begins, after the save of the one before."""
        self._began_at = now

    def end_step(self, now: float) -> None:
        """Note when the step has ended."""
        if self._began_at is not None:
            self.note_step(now - self._began_at)

    def note_step(self, seconds: float) -> None:
        """Note how long a step took, without saves."""
        self._step_s = seconds if self._step_s is None else (1 - WEIGHT) * self._step_s + WEIGHT * seconds
        self._timed += 1

    def expect(self, seconds: float) -> None:
        """Choose the first interval by how long a save probably takes."""
        if self.steps == 0 and self._timed >= STEPS_BEFORE:
            self.note_save(seconds)

    def note_save(self, seconds: float) -> None:
        """Note how long a save took, and choose the interval anew."""
        self._save_s = seconds
        steps = 1
        steps_max = min(self.steps * GROWTH_MAX, STEPS_MAX) if self.steps else STEPS_MAX
        least_s = max(seconds / SHARE_MAX, self._least_s)
        while self._step_s is not None and steps * self._step_s < least_s and steps < steps_max:
            steps *= 2
        self.steps = steps

    def note_skip(self) -> None:
        """Note that a save was due and could not be made."""
        self._skipped += 1

    def news(self) -> Interval | None:
        """Return what nodeclient is to show, if the interval has changed or a save was skipped."""
        now = Interval(self.steps, self._save_s, self._skipped)
        if (now.steps, now.skipped) == (self._reported.steps, self._reported.skipped):
            return None
        self._reported = now
        return now

    def due(self, step: int) -> bool:
        """Whether to save this step."""
        return self.steps > 0 and step % self.steps == 0
