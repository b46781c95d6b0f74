"""Finds the step to which a state of the training belongs; a state without a number of its own is not kept.

A step ends with `ctx.step`, where the state is new only if an optimizer has changed it. If gradients are accumulated
over several batches, the state between two steps of the optimizer includes gradients, which are not kept.
"""

from __future__ import annotations

import logging

LOG = logging.getLogger("workerlib.keep")

UNREPORTED = 100
"""The steps of optimizers without a report of the script after which it is warned. No script has so many optimizers."""


class StepNumbers:
    """Follows the steps of optimizers, and the script's reports."""

    def __init__(self) -> None:
        self.done = -1
        """The last step that can be kept."""
        self.has_optimizer = False
        """Whether an optimizer with hooks was seen; a script may use others."""
        self._reported = -1
        """The last number that the script has reported, whether the state was new or not."""
        self._stride = 1
        """The number of the next report less that of the last one."""
        self._changed = 0
        """The steps of optimizers since the last `ctx.step`."""
        self._is_named = True
        self._warned = False

    @property
    def next(self) -> int:
        """The probable number of the current step."""
        return self._reported + self._stride

    @property
    def is_changing(self) -> bool:
        """Whether an optimizer has begun a step since the last `ctx.step`."""
        return self._changed > 0

    @property
    def problem(self) -> str:
        """Why the present state is not that of the step `done`; empty if it is."""
        if self.done < 0:
            return "no step is done yet"
        if self.is_changing:
            return "a step is not whole"
        return "" if self._is_named else "the last step has no number of its own"

    def begin(self, step: int) -> None:
        """Go on from a step."""
        self.done = self._reported = step

    def note_optimizer(self) -> None:
        """Note that an optimizer begins a step."""
        self.has_optimizer = True
        self._changed += 1
        if self._changed == UNREPORTED:
            self._warn(f"{UNREPORTED} steps of an optimizer without ctx.step: call it after each, or none is kept")

    def note_step(self, number: int) -> bool:
        """Note that the script reports a step; return whether the state is new, and has this number."""
        changed, self._changed = self.is_changing or not self.has_optimizer, 0
        if number > self._reported >= 0:
            self._stride = number - self._reported
        self._reported = number
        if number > self.done:
            if changed:
                self.done, self._is_named = number, True
            return changed
        if changed:
            self._is_named = False
            self._warn(f"step {number} was reported after step {self.done}: only a step with a higher number is kept")
        return False

    def _warn(self, text: str) -> None:
        if not self._warned:
            LOG.warning("%s", text)
        self._warned = True
