"""Finds out to which step the state of training belongs at each moment, and whether it may be saved as that.

The script reports only its steps (`ctx.step`), and hooks notice when an optimizer begins to change parameters. A state
that was saved after such a change and before the next `ctx.step`, or under a wrong number, would be restored as a step
that never was.
"""

from __future__ import annotations

import logging
from enum import Enum, auto

LOG = logging.getLogger("workerlib.keeping")

UNREPORTED = 100
"""How many steps of one optimizer without a `ctx.step` lead to a warning."""

UNCHANGED = 100
"""How many calls of `ctx.step` lead to a warning if nothing has changed the state in this round yet."""


class StateStage(Enum):
    """The stages of the training state; the value says why a save is not possible, and is empty if it is."""

    UNTRAINED = "no step is done yet"
    WHOLE = ""
    """It is the state after the last step."""
    CHANGING = "a step is not whole"
    """An optimizer has begun a step since the last `ctx.step`."""
    UNNUMBERED = "the last step has no number of its own"
    """`ctx.step` has repeated a number, or gone back."""
    UNKEPT = "it has become state that cannot be kept"
    """Nothing more is saved in this round."""
    TORN = "training has ended within a step"
    """It may be the state of no step. Nothing more is saved in this round."""


class StateEvent(Enum):
    """The events that change the stage."""

    RESUMED = auto()
    """A step was restored."""
    CHANGED = auto()
    """An optimizer begins a step."""
    NUMBERED = auto()
    """`ctx.step` has a higher number than any before."""
    REPEATED = auto()
    """`ctx.step` has no higher number, though the state is new."""
    REFUSED = auto()
    """A part of the state cannot be kept any more."""
    TORN = auto()
    """Training has ended within a step, or the round has broken while a GPU was in one (`StepSaver.keep_step`), or the
    script may change the state unobserved (`StepSaver.release`)."""


_NEXT: dict[tuple[StateStage, StateEvent], StateStage] = {
    (StateStage.UNTRAINED, StateEvent.RESUMED): StateStage.WHOLE,
    (StateStage.UNTRAINED, StateEvent.NUMBERED): StateStage.WHOLE,
    (StateStage.WHOLE, StateEvent.CHANGED): StateStage.CHANGING,
    (StateStage.WHOLE, StateEvent.REPEATED): StateStage.UNNUMBERED,
    (StateStage.CHANGING, StateEvent.NUMBERED): StateStage.WHOLE,
    (StateStage.CHANGING, StateEvent.REPEATED): StateStage.UNNUMBERED,
    (StateStage.UNNUMBERED, StateEvent.CHANGED): StateStage.CHANGING,
    (StateStage.UNNUMBERED, StateEvent.NUMBERED): StateStage.WHOLE,
    **{(stage, StateEvent.REFUSED): StateStage.UNKEPT for stage in StateStage if stage is not StateStage.TORN},
    **{(stage, StateEvent.TORN): StateStage.TORN for stage in StateStage},
}
"""The next stages; any other event leaves the stage as it is, such as a change before the first step."""


class StepNumbers:
    """Finds out to which step the present state belongs.

    `ctx.step` makes a new state only if training has changed it. Otherwise gradients are being accumulated, which are
    not kept: the batches since the last new state are done again after a restart. A state whose number is not higher
    than that of an earlier one is not kept either.
    """

    def __init__(self) -> None:
        self.last_step = -1
        """The last step that can be kept; -1 if there is none."""
        self.count = 0
        """How many steps had a new state in this round."""
        self.has_optimizer = False
        """Whether an optimizer has called its hook in this round; a script may use optimizers without hooks."""
        self.is_accumulating = False
        """Whether the last `ctx.step` had no new state."""
        self.stage = StateStage.UNTRAINED
        self._reported = -1
        """The number in the last `ctx.step`, whether the state was new or not."""
        self._stride = 1
        """The difference between successive reported numbers."""
        self.is_changing = False
        """Whether an optimizer has begun a step since the last `ctx.step`: the stage is not always `CHANGING` then."""
        self._optimizer_steps: dict[int, int] = {}
        """The steps of each optimizer, by its identity, since the last `ctx.step` and outside of sections. A script may
        have an optimizer for each parameter."""
        self._refusal = ""
        """Why state cannot be kept any more; empty while it can."""
        self._calls = 0
        """How often the script has called `ctx.step` in this round."""
        self._warned = False

    @property
    def next_step(self) -> int:
        """The probable number of the current step, for a state that is saved before `ctx.step` reports the step."""
        return self._reported + self._stride

    @property
    def lacks_steps(self) -> bool:
        """Whether the script has trained outside of sections, and never called `ctx.step` in this round."""
        return bool(self._optimizer_steps) and not self._calls

    @property
    def problem(self) -> str:
        """Why the present state cannot be saved as that of `last_step`; empty if it can."""
        return self._refusal if self.stage is StateStage.UNKEPT else self.stage.value

    def apply(self, event: StateEvent) -> None:
        """Go to the stage that follows on this event; stay if the table has none."""
        self.stage = _NEXT.get((self.stage, event), self.stage)

    def resume(self, step: int) -> None:
        """Go on from a step."""
        self.last_step = self._reported = step
        self.apply(StateEvent.RESUMED)

    def stop_keeping(self, why: str) -> None:
        """Record why nothing can be kept any more."""
        self._refusal = why
        self.apply(StateEvent.REFUSED)

    def on_optimizer(self, optimizer: int, *, in_section: bool = False) -> bool:
        """Record that an optimizer, given by its identity, begins a step.

        Return whether it has just done so many steps that the script seems never to call `ctx.step`. In a section, a
        script has no steps to report.
        """
        self.has_optimizer = self.is_changing = True
        self.apply(StateEvent.CHANGED)
        if in_section:
            return False
        self._optimizer_steps[optimizer] = self._optimizer_steps.get(optimizer, 0) + 1
        if self._optimizer_steps[optimizer] != UNREPORTED:
            return False
        self._warn(f"{UNREPORTED} steps of an optimizer without ctx.step: call it after each, or none is kept")
        return not self._calls

    def on_step(self, number: int, *, trained: bool = False) -> bool:
        """Record a `ctx.step`; return whether the state is new, and this number is higher than those before.

        `trained` says that training without hooks has changed the state. Even a new state may be one that cannot be
        kept: see `problem`.
        """
        changed = self.is_changing or trained
        self.is_changing = False
        self._optimizer_steps.clear()
        self._calls += 1
        if number > self._reported >= 0:
            self._stride = number - self._reported
        self._reported = number
        self.is_accumulating = not changed
        if not changed:
            if not self.count and self._calls == UNCHANGED:
                self._warn(
                    f"{UNCHANGED} calls of ctx.step, and no parameter that was given to ctx.keep has changed: no step "
                    "is kept before one has. Give it the tensors that are trained, such as the dict that is passed to "
                    "torch.func.functional_call, and no parameters that are not"
                )
            return False
        if number <= self.last_step:
            self.apply(StateEvent.REPEATED)
            self._warn(
                f"step {number} was reported after step {self.last_step}: only a step with a higher number is kept"
            )
            return False
        self.last_step = number
        self.count += 1
        self.apply(StateEvent.NUMBERED)
        return True

    def _warn(self, text: str) -> None:
        if not self._warned:
            LOG.warning("%s", text)
        self._warned = True
