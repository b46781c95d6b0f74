"""The planned end of a round: the step that all its workers keep before they end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import UNHEARD, Member
from coordinatord.core.rounds.state.run import Run
from coordinatord.protocol.kept_state import Halt, Holding
from coordinatord.protocol.messages import Phase


@dataclass(slots=True)
class Halting:
    """The planned end of one round, from when it was stopped: workers promise steps, and all go on to the furthest one.

    Each worker promises not to go further than the step that it is in. So no worker has passed the furthest of these.
    All of them can come to it, since a worker stands still only when it has given the others what they need for its
    step. A coordinator that was started again names the same step, since workers that have received it promise that
    very step. It has not heard all nodes when the first one asks to leave, so it counts on those that it has not heard.
    """

    wanted: bool = False
    """Whether all workers of the round can halt after a step that is named, as far as is known."""
    promised: dict[str, int] = field(default_factory=dict)
    """The step that the workers of each node do not go beyond, by node."""
    step: int | None = None
    """The step that was named."""

    def begin(self, run: Run) -> None:
        """Begin the stop of a round."""
        self.wanted = run.durable.planned and run.durable.stepped and _may_halt(run.roll.inside)
        self.promised, self.step = {}, None

    def is_on(self, run: Run) -> bool:
        """Whether the workers of the round are to keep one step: all of them live, and can halt after it."""
        intact = not run.evidence.failures and run.roll.round_size == len(run.durable.order)
        return run.durable.state is State.STOPPING and self.wanted and intact

    def furthest_promised(self, run: Run) -> int | None:
        """Return the step to name; None before every node has promised one, and once one was named."""
        if self.step is not None or len(self.promised) < len(run.durable.order) or not self.is_on(run):
            return None
        return max(self.promised.values())

    def note_promise(self, member: Member, holding: Holding | None) -> bool:
        """Take in after which step the workers of a node stand still, or that they cannot; return whether they cannot.

        The latter is news of a node that was not heard when the round was stopped. Then there is no step that all keep.
        """
        if holding is not None and holding.halts_after is not None:
            self.promised.setdefault(member.node, holding.halts_after)
        elif self.wanted and member.observed.phase is Phase.RUNNING and not can_halt([member]):
            self.wanted = False
            return True
        return False

    def sent_to(self, run: Run, member: Member) -> Halt | None:
        """Return what a node of a round that stops is sent; None if each node keeps the last step it has done."""
        return Halt(self.step) if member.durable.in_round and self.is_on(run) else None

    def sentence(self, run: Run) -> str:
        """Say after which step all workers end; empty while none is known."""
        step = self.furthest_promised(run) if self.step is None else self.step
        return f"all workers end after step {step:,}" if step is not None and self.is_on(run) else ""


def can_halt(members: Iterable[Member]) -> bool:
    """Whether all workers of these members can halt after a step that is named."""
    return all(_can_halt(member) for member in members)


def _may_halt(members: Iterable[Member]) -> bool:
    """Whether they can, as far as is known: a member that was not heard yet may be able to."""
    return all(member.observed is UNHEARD or _can_halt(member) for member in members)


def _can_halt(member: Member) -> bool:
    holding = member.observed.kept
    return member.keeper is not None and holding is not None and holding.can_halt
