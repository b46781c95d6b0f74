"""Which checkpoint all nodes of a round have written, and when that became known."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

NONE_YET = -1
"""Stands for the step of a node whose workers will write checkpoints, and have written none."""


@dataclass(slots=True)
class CheckpointWatch:
    """The newest checkpoint of the current round, and when it became known: nodes that arrived may wait for one.

    It counts nodes by their newest checkpoints, so that the cost of a report does not grow with their number.
    """

    at: float = -math.inf
    """When the newest checkpoint of all nodes became known, or a step that was saved at an interval became whole."""
    _round: int = 0
    _steps: dict[str, int] = field(default_factory=dict)
    """The step of the newest checkpoint of each node whose script writes any."""
    _nodes_at: Counter[int] = field(default_factory=Counter)
    _common: int = NONE_YET
    _unheard: set[str] = field(default_factory=set)
    """The nodes that have not been heard since this coordinator was started, if an earlier one formed the round. Until
    all have been heard, nobody knows whether a checkpoint is a new one."""

    @property
    def are_written(self) -> bool:
        """Whether the script writes checkpoints by itself, as far as is known."""
        return bool(self._steps)

    def begin(self, round_number: int, unheard: Iterable[str] = ()) -> None:
        """Forget what was known of an earlier round; of this one, `unheard` are the nodes whose reports may be old."""
        if round_number != self._round:
            self._round, self._common, self._unheard = round_number, NONE_YET, set(unheard)
            self._steps.clear()
            self._nodes_at.clear()

    def note(self, node: str, step: int, now: float) -> None:
        """Note the newest checkpoint that all workers of a node have written."""
        before = self._steps.get(node)
        if before == step:
            return
        if before is not None:
            self._nodes_at[before] -= 1
            if not self._nodes_at[before]:
                del self._nodes_at[before]
        self._steps[node] = step
        self._nodes_at[step] += 1
        common = min(self._nodes_at)
        if self._unheard:
            self._common = common
        elif common > self._common:
            self._common, self.at = common, now

    def note_whole(self, now: float) -> None:
        """Note that a step which was saved at an interval is whole."""
        if not self.are_written and not self._unheard:
            self.at = now

    def note_known(self, node: str) -> None:
        """Note that a node of the round has reported: what it reports from now on is new."""
        self._unheard.discard(node)
