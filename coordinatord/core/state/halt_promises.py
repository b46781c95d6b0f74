"""The planned end of a round: the steps that workers promise not to go beyond, and the one that all go on to.

Each worker promises not to go further than the step that it is in. So no worker has passed the furthest of these steps.
All of them can come to it, since a worker stands still only when it has given the others what they need for its step.
The coordinator names that furthest step, and all workers go on to it. A coordinator that was started again names the
same step, since workers that have received it promise that very step. It has not heard all nodes when the first one
asks to leave, so it counts on those that it has not heard.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from coordinatord.core.state.member import UNHEARD, Member


@dataclass(slots=True)
class Halting:
    """The end of one round, from when it was stopped on purpose."""

    wanted: bool = False
    """Whether all workers of the round can halt after a step that is named, as far as is known."""
    promised: dict[str, int] = field(default_factory=dict)
    """The step that the workers of each node do not go beyond, by node."""
    step: int | None = None
    """The step that was named."""


def can_halt(members: Iterable[Member]) -> bool:
    """Whether all workers of these members can halt after a step that is named."""
    return all(_can_halt(member) for member in members)


def may_halt(members: Iterable[Member]) -> bool:
    """Whether they can, as far as is known: a member that was not heard yet may be able to."""
    return all(member.observed is UNHEARD or _can_halt(member) for member in members)


def _can_halt(member: Member) -> bool:
    kept = member.observed.kept
    return member.keeper is not None and kept is not None and kept.can_halt
