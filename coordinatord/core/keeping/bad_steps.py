"""Says which kept steps are known to be wrong, by the records of this run and of earlier ones.

A step is *spoiled* if no round resumes from it any more, and *doubted* if ranks may differ in it.
"""

from __future__ import annotations

from coordinatord.core.rounds.state.durable import DurableRun
from coordinatord.core.rounds.values.resume_point import ResumePoint
from coordinatord.protocol.kept_state import KeptStep


def has_spoiled(durable: DurableRun, at: KeptStep, maker: str | None = None) -> bool:
    """Whether no round may resume from a step in memory, or, with `maker`, from a step of that run on the disk."""
    spoiled = durable.spoiled
    if maker not in {None, durable.id}:
        spoiled = next((earlier.spoiled for earlier in durable.earlier if earlier.run == maker), ())
    return any(step.covers(at, on_disk=maker is not None) for step in spoiled)


def may_differ(durable: DurableRun, at: KeptStep, maker: str) -> bool:
    """Whether ranks may differ in a step that the run `maker` has made.

    They may differ in all steps of that run from its first doubted one on. They may also differ in a step that is
    spoiled on the disk: only a difference spoils steps there, and no damage of memory.
    """
    of_earlier = next((earlier.doubted for earlier in durable.earlier if earlier.run == maker), None)
    first_doubted = durable.doubted if maker == durable.id else of_earlier
    return has_spoiled(durable, at, maker) or (first_doubted is not None and first_doubted <= at)


def is_doubtful(durable: DurableRun, point: ResumePoint) -> bool:
    """Whether ranks may differ in the step that a round resumes from."""
    if point.disk is None:
        return may_differ(durable, point.at, durable.id)
    return may_differ(durable, KeptStep(point.disk.round, point.step), point.disk.run)


def has_doubts(durable: DurableRun) -> bool:
    """Whether steps are known in which ranks differ, or may differ."""
    # Of earlier runs, the last one tells: a run that resumes from a doubted step has doubted steps itself.
    of_last_run = durable.earlier[0].doubted if durable.earlier else None
    return durable.doubted is not None or of_last_run is not None or any(step.on_disk for step in durable.spoiled)
