"""The exits of a node: by the coordinator's outcome, or by a success that the node knows of by itself."""

from __future__ import annotations

from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.messages import Desired, Phase, Result
from nodeclient.core import notices
from nodeclient.core.effects import Exit, Level
from nodeclient.core.table import Stimulus
from nodeclient.core.worker_group import WorkerGroup

REPORT_WITHIN_S = 30.0
"""How long a node looks for a coordinator when it knows by itself that the run has succeeded. A coordinator that is
started again is back within seconds, and then records the success."""


def exit_as_directed(desired: Desired | None, signum: int | None) -> Exit:
    """Return the exit that the coordinator asks for; `signum` is the signal by which this node leaves, if it does."""
    assert desired is not None  # noqa: S101 - goals come from it
    outcome = desired.outcome
    assert outcome is not None  # noqa: S101 - `exit` carries one, see `messages`
    code = outcome.exit_code
    if outcome.result is Result.LEFT and signum is not None:
        code = 128 + signum
    well = outcome.result in {Result.SUCCEEDED, Result.LEFT, Result.STOPPED}
    return Exit(code, outcome.summary, Level.INFO if well else Level.ERROR, desired.report)


def patience_s(join_timeout_s: float, phase: Phase, group: WorkerGroup, goal: Stimulus | None) -> float:
    """Return how long a node without workers looks for a coordinator."""
    return min(join_timeout_s, REPORT_WITHIN_S) if _has_succeeded_alone(phase, group, goal) else join_timeout_s


def succeeded_alone(phase: Phase, group: WorkerGroup, goal: Stimulus | None, error: str) -> Exit | None:
    """Return the exit of a node that cannot reach the coordinator but knows that the run has succeeded, or None."""
    alone = _has_succeeded_alone(phase, group, goal)
    return Exit(ExitCode.OK, notices.succeeded_alone(error), Level.INFO) if alone else None


def conclusion(ending: Exit, phase: Phase, group: WorkerGroup, goal: Stimulus | None) -> Exit:
    """Return the exit of a node that has decided on `ending`: success instead, if it knows of one and cannot report it.

    This is for a node whose embedded coordinator has ended: it will not be back, so the node does not look for it.
    """
    is_unreported = ending.code == ExitCode.UNAVAILABLE
    return (succeeded_alone(phase, group, goal, ending.message) if is_unreported else None) or ending


def _has_succeeded_alone(phase: Phase, group: WorkerGroup, goal: Stimulus | None) -> bool:
    """Whether this node knows that all workers of the round have succeeded, since it is the only node.

    The last goal must have been to run this round. What follows a round that was being stopped is the coordinator's
    decision.
    """
    assignment = group.assignment
    return (
        phase is Phase.SUCCEEDED
        and goal is Stimulus.RUN
        and assignment is not None
        and assignment.group_world_size == 1
    )
