"""Decides at which steps to save state or make a digest of it, so that this takes a small share of training's time.

A saved step is of use only if every shard of it is saved, and only digests of the same step can be compared. The ranks
measure different times, and should need no message to agree on an interval. So intervals are powers of two, and each
rank acts at the steps that its own interval divides. All ranks then act at those that the largest interval divides.

* The interval of saves begins at `STEPS_FIRST`, and at most doubles with each save. So whatever ranks measure, all of
  them save the first step of a round that 8 divides, the first that 16 divides, and so on.
* The interval of digests begins at 1, since only a digest tells how long one takes. Until the second digest it doubles
  at each step that comes too early for one. From there on it at most doubles with each digest.
"""

from __future__ import annotations

from workerlib.contract.channel_messages import Interval

DISK_SHARE = 0.25
"""The least time between two saves if steps are also written to a disk, as a share of the time between two such writes.
A written step is older than the newest one by at most that share."""

SHARE_MAX = 0.01
"""The share of training's time that saves may take."""

DIGESTS_SHARE_MAX = 0.003
"""The part of training's time that digests of the state may take if the next one takes as long as the last. On a busy
host the next one may take longer, and all digests are to stay below half a percent."""

HEARD_S = 1.5
"""The least time between two saves where several nodes have to agree on a step, and between two digests, in seconds. A
node reports once a second. If one node overwrites a step before all have reported it, they can neither agree on it nor
compare it.
"""

STEPS_FIRST = 4
"""The interval of saves until one is timed. It is short, so that a round that breaks early has a saved step."""

WEIGHT = 0.2
"""The weight of the last step in the moving average of a step's time: low, so that one evaluation counts little."""


class SaveInterval:
    """Measures steps and saves, and decides at which steps to save."""

    def __init__(self) -> None:
        self.steps = STEPS_FIRST
        """The interval, in steps: the difference of two steps' numbers."""
        self.stride = 1
        """The difference between the numbers of the last two steps."""
        self._least_s = 0.0
        """The least time between two saves."""
        self._step_s = 0.0
        """How long one step takes; 0 until one was timed."""
        self._save_s = 0.0
        """How long the last save took; 0 before the first one."""
        self._began: tuple[int, float] | None = None
        """The last step that ended, and when the present one began."""
        self._skipped = 0
        """How many saves were due and could not be made."""
        self._reported = Interval(0, 0.0, 0)

    def raise_pause(self, seconds: float) -> None:
        """Raise the least time between two saves to `seconds`, if it is shorter."""
        self._least_s = max(self._least_s, seconds)

    def begin_step(self, done: int, now: float) -> None:
        """Record when a step begins, after the save of the step `done`."""
        self._began = done, now

    def end_step(self, step: int, now: float) -> bool:
        """Record when a step has ended; return whether to save it.

        A script may skip numbers of steps, and then the next one that it reports is saved.
        """
        before = step - 1
        if self._began is not None:
            before, began_at = self._began
            self.stride = step - before
            step_s = (now - began_at) / self.stride
            self._step_s = (1 - WEIGHT) * self._step_s + WEIGHT * step_s if self._step_s else step_s
        return step // self.steps > before // self.steps

    def record_save(self, seconds: float) -> None:
        """Record how long a save took, and choose a new interval.

        The first save never raises the interval: it is slow, since it writes into new memory.
        """
        steps_max = 2 * self.steps if self._save_s else self.steps
        least_s = max(seconds / SHARE_MAX, self._least_s)
        self._save_s, self.steps = seconds, 1
        while self.steps < steps_max and self.steps * self._step_s < least_s:
            self.steps *= 2

    def record_skip(self) -> None:
        """Record that a save was due and could not be made."""
        self._skipped += 1

    def news(self) -> Interval | None:
        """Return the interval for nodeclient if it has changed or a save was skipped since the last call, else None."""
        now = Interval(self.steps, self._save_s, self._skipped)
        if (now.steps, now.skipped) == (self._reported.steps, self._reported.skipped):
            return None
        self._reported = now
        return now


class DigestInterval:
    """Measures digests, and decides after which steps to make one; replicas are compared by them."""

    def __init__(self) -> None:
        """Begin with a digest at the next step."""
        self.steps = 1
        self._before = -1
        """The last step."""
        self._made: tuple[int, float] | None = None
        """The step of the last digest, and when that was made; None before the first."""
        self._least_s = 0.0
        """The least time until the next one."""
        self._is_chosen = False
        """Whether two digests were made, so that the interval was chosen by the time between them."""

    def is_due(self, step: int, now: float) -> bool:
        """Whether to make a digest after a step. Scripts may skip numbers of steps."""
        before, self._before = self._before, step
        if step // self.steps == before // self.steps:
            return False
        if self._made is not None and not self._is_chosen and now - self._made[1] < self._least_s:
            self.steps *= 2
            return False
        return True

    def record(self, step: int, seconds: float, now: float) -> None:
        """Record how long a digest after a step took, and choose a new interval."""
        last, self._made = self._made, (step, now)
        self._least_s = max(seconds / DIGESTS_SHARE_MAX, HEARD_S)
        steps_max, self.steps = 2 * self.steps, 1
        if last is None:
            return
        self._is_chosen, (before, made_at) = True, last
        while self.steps < steps_max and self.steps * (now - made_at) < self._least_s * (step - before):
            self.steps *= 2
