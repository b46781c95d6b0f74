"""Mistakes about nodes that wait for a checkpoint: none is awaited, an old one counts, or that of one node."""

from __future__ import annotations

from tests.sim.mutants.mutant import Mutant

MUTANTS = tuple(
    Mutant(name, module, breaks, old, new, plays="checkpoint_waits.checkpoint_waiting_world")
    for name, module, breaks, old, new in (
        (
            "checkpoint-not-awaited",
            "coordinatord.core.queries.scale_up_wait",
            "a round ends for nodes that were to wait for a checkpoint",
            "    return run.checkpoints.are_written or",
            "    return",
        ),
        (
            "old-checkpoint-counts",
            "coordinatord.core.queries.conditions",
            "a checkpoint counts that was written before the nodes came which wait for one",
            "run.ready_first is not None and run.checkpoints.at >= run.ready_first",
            "run.ready_first is not None and run.checkpoints.at > -math.inf",
        ),
        (
            "checkpoint-of-one-node-counts",
            "coordinatord.core.state.checkpoint_watch",
            "a checkpoint counts that one of the nodes has written",
            "        common = min(self._nodes_at)\n",
            "        common = max(self._nodes_at)\n",
        ),
        (
            "old-checkpoint-is-new-after-a-restart",
            "coordinatord.core.transitions.kept_reports",
            "a coordinator that was started again takes the last checkpoint for a new one",
            "checkpoints.begin(run.durable.round, run.durable.order)",
            "checkpoints.begin(run.durable.round)",
        ),
        (
            "checkpoint-awaited-for-ever",
            "coordinatord.core.state.checkpoint_watch",
            "nodes wait for a checkpoint though all nodes have written one",
            "            self._common, self.at = common, now\n",
            "            self._common = common\n",
        ),
    )
)
