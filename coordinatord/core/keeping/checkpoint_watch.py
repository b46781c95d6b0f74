"""Knows when the script last wrote a checkpoint, because with `--scale-up at-checkpoint` new nodes wait for one.

A round that ends right after a checkpoint loses no step. Many scripts write checkpoints on one node only, so a node is
known to write them once it reports that. A checkpoint counts when all of these nodes have written it. If the script
writes none, a step that workers keep in memory at an interval counts as one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from coordinatord.core.rounds.values.due_times import LONG_AGO

NONE_YET = -1
"""The newest checkpoint of a node whose workers have announced checkpoints, and have written none: before step 0."""


@dataclass(slots=True)
class CheckpointWatch:
    """The newest checkpoint that is written by all those nodes of the current round that write any.

    It is the lowest of these nodes' newest checkpoints. To find it at a low cost in a round of 10,000 nodes, nodes are
    counted by their newest checkpoints.
    """

    newest_at: float = LONG_AGO
    """When it became known; `LONG_AGO` before the first. A new round does not reset it: a node waits for a checkpoint
    that is newer than its arrival, so an older one does no harm."""
    _round: int = 0
    _step_of_node: dict[str, int] = field(default_factory=dict)
    """The step of the newest checkpoint of each node whose script writes any."""
    _node_counts: Counter[int] = field(default_factory=Counter)
    """How many nodes have their newest checkpoint at each step."""
    _common_step: int = NONE_YET
    """The step of the newest checkpoint that all of these nodes have written."""
    _saved_step: int = NONE_YET
    """The newest step of the round that is known to have been whole in memory."""
    _unheard: set[str] = field(default_factory=set)
    """The nodes of the round that have not been heard since a restart of the coordinator. Until all are heard, a
    checkpoint may have been written before the restart, and does not count as a new one."""

    @property
    def writes_any(self) -> bool:
        """Whether the script writes checkpoints, as far as is known."""
        return bool(self._step_of_node)

    def begin_round(self, round_number: int, unheard: Iterable[str] = ()) -> None:
        """Forget an earlier round; do nothing if this one has begun.

        `unheard` are the nodes of a round that began before a restart of the coordinator: their first reports may be
        about checkpoints from before the restart.
        """
        if round_number != self._round:
            self._round, self._unheard = round_number, set(unheard)
            self._common_step = self._saved_step = NONE_YET
            self._step_of_node.clear()
            self._node_counts.clear()

    def record_checkpoint(self, node: str, step: int, now: float) -> None:
        """Record the newest checkpoint that all workers of a node have written."""
        before = self._step_of_node.get(node)
        if before == step:
            return
        if before is not None:
            self._node_counts[before] -= 1
            if not self._node_counts[before]:
                del self._node_counts[before]
        self._step_of_node[node] = step
        self._node_counts[step] += 1
        common = min(self._node_counts)
        if self._unheard:
            # All of these may be from before the restart, so none counts as new. `_common_step` may also go down here,
            # since the next node to be heard may have an older one.
            self._common_step = common
        elif common > self._common_step:
            self._common_step, self.newest_at = common, now

    def record_saved_step(self, step: int, now: float) -> None:
        """Record the newest whole step of this round. A new one counts as a checkpoint if the script writes none.

        In a running round it was saved at an interval: without an interval, state is saved only when the round breaks.
        """
        if step > self._saved_step:
            self._saved_step = step
            if not self.writes_any and not self._unheard:
                self.newest_at = now

    def record_heard(self, node: str) -> None:
        """Record that a node of the round was heard, after its report was recorded: its later checkpoints are new."""
        self._unheard.discard(node)
