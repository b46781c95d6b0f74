"""A job on a stage whose first round runs, with its state and the desired states of its nodes."""

from __future__ import annotations

from collections.abc import Sequence

from coordinatord.core.state.durable import State
from coordinatord.protocol.kept_state import PersistOrder
from coordinatord.protocol.messages import Desired
from tests.support.script import Stage


def running_job(nodes: Sequence[str], options: str, spares: Sequence[str] = ()) -> Stage:
    """Return a stage where these nodes have joined with these options, and all of them run but the spares."""
    stage = Stage()
    for node in (*nodes, *spares):
        stage.play(f"join {node} {options}")
    stage.play(f"running {' '.join(nodes)}")
    return stage


def state_of(stage: Stage) -> State:
    """Return the state of the job."""
    return stage.coordinator.jobs["default"].durable.state


def desired_of(stage: Stage, node: str) -> Desired:
    """Return the last desired state of a node."""
    desired = stage.puppets[node].desired
    assert desired is not None
    return desired


def order(stage: Stage, node: str) -> PersistOrder | None:
    """Return a node's order to write to the disk."""
    return desired_of(stage, node).persist
