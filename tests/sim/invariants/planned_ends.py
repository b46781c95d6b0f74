"""An invariant of planned ends: all workers are to keep one step, if the nodes have last said that all of them can."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from coordinatord.core.state.run import Run
from coordinatord.core.values.records import RoundStopped
from coordinatord.protocol.messages import Observed, Phase

if TYPE_CHECKING:  # the world imports its invariants
    from tests.sim.world import World


def judge_planned_end(world: World, run: Run, record: RoundStopped, heard: Mapping[tuple[str, int], Observed]) -> None:
    """Check the stop of a round, by the last report of each node to any life of the coordinator.

    A coordinator that was started again has not heard all nodes when the first one asks to leave. Their workers would
    end without a common step if it did not count on them.
    """
    key = record.run, record.round
    reports = [heard.get((member.node, member.incarnation)) for member in run.inside]
    is_whole = len(reports) == len(run.durable.order)
    able = is_whole and all(report is not None and _can_halt(report, key) for report in reports)
    if record.planned and run.durable.stepped and able:
        text = "round %d ends without a step that all of its workers keep"
        world.invariants.check(run.halting.wanted, text, record.round)


def _can_halt(report: Observed, key: tuple[str, int]) -> bool:
    here = report.phase is Phase.RUNNING and (report.run, report.round) == key
    return here and report.kept is not None and report.kept.can_halt
