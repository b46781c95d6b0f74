"""What a node ends with, and what it may conclude without being told."""

from __future__ import annotations

from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.messages import Desired, Phase, Result
from nodeclient.core import notices
from nodeclient.core.effects import Exit, Level
from nodeclient.core.table import Stimulus
from nodeclient.core.worker_group import WorkerGroup

REPORT_WITHIN_S = 30.0
"""A node that knows by itself that the run has succeeded looks for so long for somebody to tell: a coordinator that is
started again is back within some seconds, and its records are to be right."""


def exit_as_directed(desired: Desired | None, leaving: int | None) -> Exit:
    """Return what the coordinator tells a node to end with; `leaving` is the signal by which its user ended it."""
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
    """Return what a node ends with that is out of reach of the coordinator, and knows that the run has succeeded."""
    alone = _has_succeeded_alone(phase, group, goal)
    return Exit(ExitCode.OK, notices.succeeded_alone(error), Level.INFO) if alone else None


def _has_succeeded_alone(phase: Phase, group: WorkerGroup, goal: Stimulus | None) -> bool:
    """Whether all workers of the round have succeeded as far as one node can know: it is the only one.

    Only if the goal was last to run this round: of one that was being stopped, more was to come.
    """
    part = group.assignment
    return phase is Phase.SUCCEEDED and goal is Stimulus.RUN and part is not None and part.group_world_size == 1
