"""Finds whether all workers keep one step before they end, and which step that is; see `state/halt_promises`."""

from __future__ import annotations

from coordinatord.core.state.durable import State
from coordinatord.core.state.member import Member
from coordinatord.core.state.run import Run
from coordinatord.protocol.kept_state import Halt
from coordinatord.protocol.messages import Goal


def is_halting(run: Run) -> bool:
    """Whether the workers of the round are to keep one step: all of them live, and can halt after it."""
    intact = not run.failures and run.round_size == len(run.durable.order)
    return run.durable.state is State.STOPPING and run.halting.wanted and intact


def furthest_promised(run: Run) -> int | None:
    """Return the step to name; None before every node has promised one, and once one was named."""
    halting = run.halting
    if halting.step is not None or len(halting.promised) < len(run.durable.order) or not is_halting(run):
        return None
    return max(halting.promised.values())


def halt_for(run: Run, member: Member, goal: Goal) -> Halt | None:
    """Return what a node is sent about the step that all workers keep; None if each keeps the last one it has done."""
    if goal is not Goal.STOP or not member.durable.in_round or not is_halting(run):
        return None
    return Halt(run.halting.step)
