"""Chooses the step after which all workers of a round pause and save before a planned end, so that no step is lost.

If each worker saved its own last step instead, no step would be whole where each rank has its own shard.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import UNHEARD, Member
from coordinatord.core.rounds.state.run import Run
from coordinatord.protocol.kept_state import Halt
from coordinatord.protocol.messages import Phase


@dataclass(slots=True)
class Halting:
    """The planned end of one round: workers promise steps, and all of them go on to the furthest promised step.

    Each worker promises to pause after the step that it is in. So no worker has passed the furthest promised step. All
    of them can reach it, because a worker pauses only after it has taken part in all collectives of its step.

    Nothing of this is recorded. A restarted coordinator names the same step again, since nodes report the promises
    again. If it has to stop a round before it has heard all nodes, it assumes that unheard nodes can halt.
    """

    is_possible: bool = False
    """Whether the end is planned and all workers can halt after a named step, as far as is known."""
    promised: dict[str, int] = field(default_factory=dict)
    """The step after which the workers of each node pause, by node."""
    step: int | None = None
    """The step that `table.name_step` has named to all nodes; None before that."""

    def begin(self, run: Run) -> None:
        """Begin the stop of a round."""
        may_halt = all(member.observed is UNHEARD or can_halt(member) for member in run.roll.inside)
        # Before its first step, a round has none to keep.
        self.is_possible = run.durable.planned and run.durable.stepped and may_halt
        self.promised, self.step = {}, None

    def is_on(self, run: Run) -> bool:
        """Whether all workers of the round are to halt after the same step: none has failed, and no node is gone."""
        intact = not run.evidence.failures and run.roll.round_size == len(run.durable.order)
        return run.durable.state is State.STOPPING and self.is_possible and intact

    def furthest_promised(self, run: Run) -> int | None:
        """Return the step to name to all nodes; None before every node has promised one, and after it was named."""
        if self.step is not None or len(self.promised) < len(run.durable.order) or not self.is_on(run):
            return None
        return max(self.promised.values())

    def record_promise(self, member: Member) -> None:
        """Record after which step the workers of a node pause, or that it turns out that they cannot halt.

        The first promise counts, since workers go no further without an order. A node that was not heard when the round
        was stopped may turn out to be unable to halt: it reports workers that still run and do not all keep state. Then
        each worker of the round saves its own last step.
        """
        if member.holding.halts_after is not None:
            self.promised.setdefault(member.node, member.holding.halts_after)
        elif self.is_possible and member.observed.phase is Phase.RUNNING and not can_halt(member):
            self.is_possible = False

    def sent_to(self, run: Run, member: Member) -> Halt | None:
        """Return the order for a node of a stopping round: to promise a step, or to go on to the named one.

        None if each worker keeps its own last step.
        """
        return Halt(self.step) if member.durable.in_round and self.is_on(run) else None

    def sentence(self, run: Run) -> str:
        """Say after which step all workers end; empty while none is known."""
        step = self.furthest_promised(run) if self.step is None else self.step
        return f"all workers end after step {step:,}" if step is not None and self.is_on(run) else ""


def can_halt(member: Member) -> bool:
    """Whether all workers of a node keep state, so that they can halt after a named step.

    A node without a `keeper` can keep none.
    """
    return member.keeper is not None and member.holding.can_halt
