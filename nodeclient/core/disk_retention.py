"""Which steps on the disk are deleted when another one has become whole there."""

from __future__ import annotations

from collections.abc import Collection

from coordinatord.protocol.frozen_class import frozen


@frozen
class StepOnDisk:
    """A whole step of a job, as a node finds it on the disk."""

    serial: int
    """Counts the steps of a job over all of its runs: a later step has a higher number."""
    folder: str
    usable: bool
    """Whether this node knows of no reason why the step could not be read."""


def superfluous(steps: Collection[StepOnDisk], keep: int, in_use: int | None) -> frozenset[str]:
    """Return the folders of the steps to delete: those that are older than the newest `keep` usable ones.

    Steps that cannot be read do not count as kept: none of them can replace a step that proves damaged. `in_use` is the
    serial of the step that the workers resume from, which stays in any case; None if there is none.
    """
    newest = sorted((step.serial for step in steps if step.usable), reverse=True)[:keep]
    if len(newest) < keep:
        return frozenset()
    return frozenset(step.folder for step in steps if step.serial < newest[-1] and step.serial != in_use)
