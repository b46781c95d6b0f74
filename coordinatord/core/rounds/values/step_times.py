"""How long the steps of a run take: those of late, and the first ones of a round.

They determine the *patience*: after so many seconds without a step, training counts as stalled. `training_progress`
records the times, and finds out whether it has.
"""

from __future__ import annotations

from collections.abc import Collection

STALL_S_MIN = 10.0
"""The least patience in seconds, however short the steps are: hosts have hiccups."""

STALL_STEPS = 10
"""The patience as a multiple of the slowest recent step: validation and checkpoints make gaps, too."""

STALL_GAPS = 2
"""The patience as a multiple of an earlier stall that ended: after one evaluation, another is expected. With
`STALL_STEPS` instead, a hang after an evaluation of ten minutes would show only after an hour and a half."""

STALL_S_UNKNOWN = 300.0
"""The least patience in seconds while no step was timed, as after a restart of the coordinator: a step of a large model
may take a minute."""

FIRST_STEP_S_MIN = 60.0
"""The least seconds that a round after a hang is given for its first step, however short that was in earlier rounds."""

FIRST_STEP_STARTS = 3
"""The same time as a multiple of the slowest first step of earlier rounds: later rounds also load a checkpoint."""

LATELY_S = 3_600.0
"""The seconds of one window of recent steps. The slowest step of the present window and the one before counts, so each
step counts for an hour or two."""


class StepTimes:
    """How long steps of a run have taken of late, and stalls that a step ended."""

    def __init__(self) -> None:
        self._slowest = [0.0, 0.0]
        """The seconds of the slowest step in the present window of `LATELY_S`, and in the one before."""
        self._stalls = [0.0, 0.0]
        """The seconds of the longest stall, in the same windows."""
        self._window_at: float | None = None
        """When the present window began; None before the first one."""
        self.any_timed = False
        """Whether any step of the run was timed, or the start before a first one."""

    def record(self, quiet_s: float, heard_at: float, *, stalled: bool) -> None:
        """Record a step before which there was none for `quiet_s` seconds; `stalled` if training had stalled then."""
        if self._window_at is None or heard_at > self._window_at + LATELY_S:
            self._slowest, self._stalls = [0.0, self._slowest[0]], [0.0, self._stalls[0]]
            self._window_at = heard_at
        longest = self._stalls if stalled else self._slowest
        longest[0] = max(longest[0], quiet_s)
        self.any_timed = True

    @property
    def longest_s(self) -> float:
        """The seconds of the slowest step or the longest stall, whichever is longer; 0 without any."""
        return max(*self._slowest, *self._stalls)

    @property
    def patience_s(self) -> float:
        """The seconds without a step that are too many, by these steps and stalls; 0 without any."""
        return max(STALL_STEPS * max(self._slowest), STALL_GAPS * max(self._stalls))

    @property
    def least_patience_s(self) -> float:
        """The least patience, however short the steps and stalls were."""
        return STALL_S_MIN if self.any_timed else STALL_S_UNKNOWN


class FirstSteps:
    """How long the first steps of rounds took, and how long the first two of the present round may take."""

    def __init__(self) -> None:
        self._nodes: Collection[object] = ()
        """The nodes of the present round."""
        self._slowest_s = 0.0
        """The seconds of the slowest start of a round of these nodes: until its first step, or its stop without one."""
        self._has_hung = False
        """Whether the last round that was stopped had hung."""
        self._may_hang_again = False
        """Whether the round before the present one had hung, and had the same nodes."""
        self._second_within_s = 0.0
        """How many seconds the second step of the round may take; 0 before the first one."""
        self.has_two = False
        """Whether a worker has done two steps of the round."""

    def begin_round(self, nodes: Collection[object]) -> None:
        """Begin a round of `nodes`, without a step."""
        self._may_hang_again = self._has_hung and nodes == self._nodes
        if nodes != self._nodes:
            self._nodes, self._slowest_s = nodes, 0.0
        self._second_within_s, self.has_two = 0.0, False

    def record(self, took_s: float) -> None:
        """Record how long the first step of the round took. The second one may compile as much again."""
        self._slowest_s = max(self._slowest_s, took_s)
        self._second_within_s = self.within_s(STALL_STEPS * took_s)

    def end_round(self, without_step_s: float | None, *, has_hung: bool) -> None:
        """Record that the round is stopped, whether it had hung, and for how long its workers ran without a step.

        `without_step_s` is None if they came to a step. Else it counts as the time to a first step.
        """
        self._has_hung = has_hung
        self._slowest_s = max(self._slowest_s, without_step_s or 0.0)

    def within_s(self, most_s: float) -> float:
        """Return how many seconds the first or second step may take: `most_s`, or less if a hang may be back."""
        if not self._may_hang_again:
            return most_s
        return min(most_s, max(FIRST_STEP_S_MIN, FIRST_STEP_STARTS * self._slowest_s))

    @property
    def patience_s(self) -> float:
        """The least patience in seconds between the first step of the round and the second; 0 before and after."""
        return 0.0 if self.has_two else self._second_within_s
