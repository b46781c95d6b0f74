"""The looks at when the workers of one round arrive in collectives, and which node is drained for what they show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from coordinatord.core.rounds.events import NodeArrivals
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import MemberState
from coordinatord.core.rounds.state.run import Health, Run
from coordinatord.core.watching.lateness import Laggard, Lateness, Offset, arrivals_of, better_offset, compare

AGREEING = 3
"""Looks in a row that name the same laggard, before anything is done about it."""


@dataclass(slots=True)
class LatenessWatch:
    """The looks at the workers of one round, and the offsets of the hosts' clocks."""

    known: Lateness | None = None
    """What the last look has shown; None before the first, or if it has shown too little."""
    agreeing: int = 0
    """How many looks in a row have named the present laggard."""
    _offsets: dict[str, Offset] = field(default_factory=dict)

    def clear(self) -> None:
        """Forget the workers of a round; the offsets of clocks stay."""
        self.known, self.agreeing = None, 0

    def take_in(self, answers: Sequence[NodeArrivals], step_s: float | None, now: float) -> None:
        """Take in the answers of a look."""
        before = None if self.known is None else self.known.laggard
        self._offsets = {answer.node: better_offset(self._offsets.get(answer.node), answer) for answer in answers}
        arrivals = [arrival for answer in answers for arrival in arrivals_of(answer, self._offsets[answer.node], now)]
        self.known = compare(arrivals, step_s)
        laggard = None if self.known is None else self.known.laggard
        same = laggard is not None and before is not None and laggard.node == before.node
        self.agreeing = (self.agreeing if same else 0) + (laggard is not None)


def trains(run: Run) -> bool:
    """Whether a run trains, as far as is known, so that its workers arrive in collectives."""
    return run.durable.state is State.RUNNING and run.health is Health.WELL


def laggard_to_drain(run: Run, watch: LatenessWatch) -> Laggard | None:
    """Return the laggard whose node is to be drained; None if there is none, or its node may not be drained.

    One node leaves at a time, and enough nodes stay for a round.
    """
    factor = run.spec.drain_laggards
    if not factor or watch.known is None or watch.agreeing < AGREEING or watch.known.factor < factor:
        return None
    found = watch.known.laggard
    staying = [member for member in run.members.values() if not member.leaves and member.durable.outcome is None]
    if found is None or len(staying) < len(run.members) or found.node not in run.members:
        return None
    left = sum(member.durable.in_round or member.state is MemberState.READY for member in staying) - 1
    return found if left >= run.spec.nodes_min else None


def sentence(known: Lateness, laggard: Laggard) -> str:
    """Describe how late a worker is, or all workers of a node."""
    late = (
        f"{_shown(laggard.late_s)} of a {_shown(known.step_s)} step" if known.step_s else f"by {_shown(laggard.late_s)}"
    )
    subject = f"node {laggard.node}" if laggard.rank is None else f"rank {laggard.rank} on node {laggard.node}"
    return f"{subject} is last in {100 * laggard.last:.0f} % of collectives, {late}"


def _shown(seconds: float) -> str:
    """Return a duration as text, in seconds or milliseconds."""
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
