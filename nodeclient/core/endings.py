"""What a node ends with, and what it may conclude by itself."""

from __future__ import annotations

from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.messages import Desired, Phase, Result
from nodeclient.core import notices
from nodeclient.core.effects import Exit, Level
from nodeclient.core.table import Stimulus
from nodeclient.core.worker_group import WorkerGroup

REPORT_WITHIN_S = 30.0
"""How long a node looks for a coordinator when it knows by itself that the run has succeeded. A coordinator that is
started again is back within seconds, and its records should be right."""


def exit_as_directed(desired: Desired | None, leaving: int | None) -> Exit:
    """Return the exit that the coordinator asks for; `leaving` is the signal with which the user ended this node."""
    assert desired is not None  # noqa: S101 - goals come from it
    outcome = desired.outcome
    assert outcome is not None  # noqa: S101 - `exit` carries one, see `messages`
    code = outcome.exit_code
    if outcome.result is Result.LEFT and leaving is not None:
        code = 128 + leaving
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
    """Return what a node ends with that has decided on `ending`: success, if it knows of that and cannot report it.

    A coordinator that was its own child is not back later, so the node does not look for it.
    """
    unheard = ending.code == ExitCode.UNAVAILABLE
    return (succeeded_alone(phase, group, goal, ending.message) if unheard else None) or ending


def _has_succeeded_alone(phase: Phase, group: WorkerGroup, goal: Stimulus | None) -> bool:
    """Whether all workers of the round have succeeded. One node can know that if it is the only one.

    The last goal must have been to run this round: what follows one that was being stopped is for the coordinator to
    decide.
    """
    assignment = group.assignment
    return (
        phase is Phase.SUCCEEDED
        and goal is Stimulus.RUN
        and assignment is not None
        and assignment.group_world_size == 1
    )
