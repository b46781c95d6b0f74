"""Which steps on the disk are dropped when another one has become whole there."""

from __future__ import annotations

from collections.abc import Collection

from coordinatord.protocol.frozen_class import frozen


@frozen
class StepThere:
    """A whole step of a job, as a node finds it on the disk."""

    serial: int
    """Counts the steps of a job over all of its runs: a later step has a higher number."""
    folder: str
    usable: bool
    """Whether this node knows of no reason why it could not be read."""


def superfluous(there: Collection[StepThere], keep: int, in_use: int | None) -> frozenset[str]:
    """Return the folders of the steps that may go: as many as are to be kept are newer, and of use.

    A step that cannot be read is none of those that are kept, since it is no choice if another one proves damaged.
    `in_use` is the serial of the step that the workers resume from, which stays in any case; None if there is none.
    """
    newest = sorted((step.serial for step in there if step.usable), reverse=True)[:keep]
    if len(newest) < keep:
        return frozenset()
    return frozenset(step.folder for step in there if step.serial < newest[-1] and step.serial != in_use)
