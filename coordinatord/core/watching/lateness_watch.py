"""Decides by several comparisons in a row which worker or node is a laggard, and which node to drain for that.

A *laggard* delays all others. `arrivals` decides when nodes are asked, and `lateness` compares the answers to one
question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from coordinatord.core.rounds.events import NodeArrivals
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import MemberState
from coordinatord.core.rounds.state.run import Health, Run
from coordinatord.core.watching.lateness import (
    Laggard,
    Lateness,
    Offset,
    arrival_times,
    better_offset,
    compare_arrivals,
)

AGREEING_MIN = 3
"""How many comparisons in a row have to find the same laggard before its node is drained or tested. A worker that is
late only for a minute, as beside another program, is no reason to lose a node."""


@dataclass(slots=True)
class LatenessWatch:
    """The lateness of the workers of one round, and the offsets of the nodes' clocks by which it was worked out."""

    lateness: Lateness | None = None
    """The result of the last comparison; None before the first, or if there was too little to compare."""
    agreeing: int = 0
    """How many comparisons in a row, up to the last, have found a laggard on the same node."""
    _offsets: dict[str, Offset] = field(default_factory=dict)

    @property
    def agreed_laggard(self) -> Laggard | None:
        """The laggard that enough comparisons in a row have found."""
        return None if self.lateness is None or self.agreeing < AGREEING_MIN else self.lateness.laggard

    def clear(self) -> None:
        """Forget the workers of a round; the offsets of clocks stay true for the next one."""
        self.lateness, self.agreeing = None, 0

    def record(self, answers: Sequence[NodeArrivals], step_s: float | None, now: float) -> None:
        """Compare the nodes' answers to one question; `step_s` is how long a step takes, None if not known."""
        before = None if self.lateness is None else self.lateness.laggard
        self._offsets = {answer.node: better_offset(self._offsets.get(answer.node), answer) for answer in answers}
        arrivals = [arrival for answer in answers for arrival in arrival_times(answer, self._offsets[answer.node], now)]
        self.lateness = compare_arrivals(arrivals, step_s)
        laggard = None if self.lateness is None else self.lateness.laggard
        same = laggard is not None and before is not None and laggard.node == before.node
        self.agreeing = (self.agreeing if same else 0) + (laggard is not None)


def is_training(run: Run) -> bool:
    """Whether a run trains, as far as is known, so that its workers arrive in collectives."""
    return run.durable.state is State.RUNNING and run.health is Health.WELL


def laggard_to_drain(run: Run, watch: LatenessWatch) -> Laggard | None:
    """Return the laggard whose node is to be drained; None if there is none, or its node may not be drained.

    It has to make steps at least `--drain-laggards` times as long. No other node may be leaving, and enough nodes have
    to stay for a round.
    """
    laggard, lateness, factor, members = watch.agreed_laggard, watch.lateness, run.spec.drain_laggards, run.members
    if not factor or laggard is None or lateness is None or lateness.factor < factor or laggard.node not in members:
        return None
    if any(member.leaves or member.durable.outcome is not None for member in members.values()):
        return None
    usable = sum(member.durable.in_round or member.state is MemberState.READY for member in members.values())
    return laggard if usable > run.spec.nodes_min else None


def describe_laggard(laggard: Laggard, step_s: float | None) -> str:
    """Describe how late a worker is, or all workers of a node; `step_s` is how long a step takes, None if not known."""
    late = f"{_duration(laggard.late_s)} of a {_duration(step_s)} step" if step_s else f"by {_duration(laggard.late_s)}"
    subject = f"node {laggard.node}" if laggard.rank is None else f"rank {laggard.rank} on node {laggard.node}"
    return f"{subject} is last in {100 * laggard.last_share:.0f} % of collectives, {late}"


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
