"""What nodes that have arrived during a round wait for, by the job's `--scale-up`."""

from __future__ import annotations

from coordinatord.core.state.halt_promises import can_halt
from coordinatord.core.state.run import Run
from coordinatord.protocol.scale_up import ScaleUp


def awaits_checkpoint(run: Run) -> bool:
    """Whether nodes that have arrived wait for a checkpoint.

    There is none where workers save their state when they are asked to, and at no other time: then no step is lost.
    """
    if run.spec.scale_up is not ScaleUp.AT_CHECKPOINT:
        return False
    return run.checkpoints.are_written or _is_saved_at_intervals(run) or not can_halt(run.inside)


def _is_saved_at_intervals(run: Run) -> bool:
    held = (member.observed.kept for member in run.inside)
    return any(kept is not None and kept.interval_steps is not None for kept in held)


def waiting_text(run: Run) -> str:
    """Describe what a node that has arrived waits for while the round goes on."""
    number = run.durable.round
    if run.round_size >= run.spec.nodes_max:
        return f"spare: round {number} has its maximum of nodes, {run.spec.nodes_max}"
    if run.spec.scale_up is ScaleUp.NEVER:
        return f"spare: round {number} does not end for nodes that arrive (--scale-up never)"
    if awaits_checkpoint(run):
        return f"round {number} is running until its next checkpoint; then the next one will include this node"
    return f"round {number} is running; the next one will include this node"
