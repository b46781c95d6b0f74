"""The step that a round resumes from, and the steps that no round resumes from any more, as records have them.

After some of their steps, workers may keep their training state in the memory of their nodes, or nodes may write it to
a disk. So the workers of the next round need not start from nothing. Some of these steps prove wrong later: memory was
damaged, or ranks that should have equal state had different ones. These are *spoiled*.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

from msgspec import Meta

from coordinatord.protocol.fields import Count, Counter, Name, Step
from coordinatord.protocol.kept_state import AtShardedStep, DiskStep, KeptStep
from coordinatord.protocol.schema import Strict

HOLDERS_NAMED = 8
"""The most holders of a step that are named, for people to read; the others are counted."""

SPOILED_MAX = 8
"""The most spoiled steps that are on record of a run, so that its records do not grow. Of more, two become one that
covers both, and perhaps good steps between them: then training goes back further than it has to, which is safe."""


class ResumePoint(AtShardedStep, frozen=True):
    """The step that a round resumes from."""

    redone: Step | None
    """How many steps are done again; None if that is not known, for example because workers report no steps."""
    nodes: Annotated[tuple[Name, ...], Meta(max_length=HOLDERS_NAMED)] = ()
    """The first few nodes whose memory holds its big state; none if it is on the disk."""
    others: Count = 0
    """How many more nodes hold it."""
    disk: DiskStep | None = None
    """The run and round that name the step on the disk; None if it is in memory. If another run has made it, the
    point's own `round` is 0, so that it is older than all steps of this run."""
    redone_at_least: bool = False
    """Whether more steps may be done again: the last round lost all nodes, and nobody knows their last steps."""


class SpoiledStep(Strict, frozen=True):
    """A step that no round resumes from any more, and with it all newer steps that rounds before `round` have made."""

    at: KeptStep
    round: Counter
    """The first round whose own steps are good again."""
    on_disk: bool = True
    """Whether steps on the disk are spoiled too: they are if ranks differed, and not if memory was damaged."""

    def covers(self, at: KeptStep, *, on_disk: bool) -> bool:
        """Whether a step in memory or on the disk is spoiled by this one."""
        return self.at <= at and at.round < self.round and (self.on_disk or not on_disk)


def with_spoiled(
    known: tuple[SpoiledStep, ...], step: SpoiledStep, back_to: KeptStep | None
) -> tuple[SpoiledStep, ...]:
    """Return the spoiled steps of a run after another one was found; it replaces those that it covers.

    `back_to` is the step that the next round resumes from; None if it begins anew, or that step is not chosen yet. If
    there are too many spoiled steps, two neighbours are merged (`SPOILED_MAX`): the first pair that does not cover
    `back_to`, or the very first one if all pairs cover it. In the latter case, the next round goes back further.
    """
    left = [each for each in known if not step.covers(each.at, on_disk=each.on_disk)]
    if len(left) == SPOILED_MAX:
        merged = [  # the second one was found later, so the round of the first is not higher
            SpoiledStep(min(first.at, second.at), second.round, first.on_disk or second.on_disk)
            for first, second in pairwise(left)
        ]
        # It is not known whether `back_to` is in memory; what does not cover it there does not cover it on the disk.
        allowed = (i for i, each in enumerate(merged) if back_to is None or not each.covers(back_to, on_disk=False))
        place = next(allowed, 0)
        left[place : place + 2] = [merged[place]]
    return (*left, step)
