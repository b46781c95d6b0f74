"""Finds steps on the disk by the reports of nodes: those that one node can use, and the newest one that all can use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coordinatord.core.keeping.known import KeptState
from coordinatord.core.rounds.state.member import Member
from coordinatord.core.rounds.values.resume_point import ResumePoint
from coordinatord.protocol.kept_state import DiskStep, KeptStep, PersistedStep


def found_by(kept: KeptState, member: Member) -> tuple[PersistedStep, ...]:
    """Return the steps that a node finds on the disk and can use, the newest first, but none in which ranks differ."""
    return () if member.observed.kept is None else _useful(kept, member.observed.kept.persisted)


def _useful(kept: KeptState, steps: Sequence[PersistedStep]) -> tuple[PersistedStep, ...]:
    run, index = kept.run, kept.index
    return tuple(
        step
        for step in steps
        if not (run.durable.has_spoiled(step.at, step.run) or (step.run == run.id and index.differs(step.at)))
    )


def unusable_to(member: Member) -> str:
    """Return why a node cannot use a step on the disk; empty if it can use all."""
    return "" if member.observed.kept is None else member.observed.kept.unusable


def find_step(kept: KeptState, member: Member, point: ResumePoint) -> PersistedStep | None:
    """Return the step of a resume point as a node finds it on the disk; None if it finds none, or for one in memory."""
    disk = point.disk
    if disk is None:
        return None
    wanted = disk.run, KeptStep(disk.round, point.step)
    return next((persisted for persisted in found_by(kept, member) if (persisted.run, persisted.at) == wanted), None)


def newest_of_run(kept: KeptState) -> KeptStep | None:
    """Return the newest step of this run that any node finds on the disk; None if none does."""
    found = (persisted for member in kept.run.members.values() for persisted in found_by(kept, member))
    return max((persisted.at for persisted in found if persisted.run == kept.run.id), default=None)


def agreed_step(kept: KeptState, members: Iterable[Member], before: KeptStep | None = None) -> PersistedStep | None:
    """Return the newest step on the disk in which ranks do not differ, as far as nodes find it, or have found it.

    Only steps older than `before` count: by default those of earlier rounds, and those of the present round that a
    digest has confirmed. Steps before the first doubted one always count.
    """
    run, agreed, known = kept.run, kept.run.watching.agreed, kept.disk.found.agreed
    end = before or KeptStep(run.durable.round, 0 if agreed is None else agreed + 1)
    end = max(end, run.durable.doubted or end)
    found = [step for member in members for step in found_by(kept, member)]
    right = (
        step
        for step in (*found, *(() if known is None else (known,)))
        if not run.durable.doubts(step.at, step.run) and (step.run != run.id or step.at < end)
    )
    return max(right, key=lambda step: step.serial, default=None)


def newest_on_disk(kept: KeptState, nodes: Sequence[Member], before: KeptStep | None = None) -> ResumePoint | None:
    """Return the newest step that all of these nodes find on the disk, as a point to resume from, if any.

    With `before`, it is older than this step. A step of an earlier run has the round 0, and is older than all steps of
    this run.
    """
    if not nodes:
        return None
    others = [{(persisted.run, persisted.at) for persisted in found_by(kept, member)} for member in nodes[1:]]
    for persisted in found_by(kept, nodes[0]):
        is_older = before is None or persisted.run != kept.run.id or persisted.at < before
        if is_older and all((persisted.run, persisted.at) in found for found in others):
            return _point(kept, persisted)
    return None


def _point(kept: KeptState, persisted: PersistedStep) -> ResumePoint:
    first, ours = persisted.parts[0], persisted.run == kept.run.id
    redone = kept.redone_from(first.step) if ours else None
    disk = DiskStep(persisted.run, first.round)
    return ResumePoint(first.round if ours else 0, first.step, first.world_size, first.shards, redone, disk=disk)


def any_finder(kept: KeptState) -> tuple[str, PersistedStep] | None:
    """Return a node that finds steps on the disk, or did before it left, and the newest of these steps."""
    if not kept.disk.found.has_any:
        return None
    found = [(member.node, found_by(kept, member)) for member in kept.run.members.values()]
    if kept.disk.found.departed is not None:
        node, steps = kept.disk.found.departed
        found.append((node, _useful(kept, steps)))
    return next(((node, steps[0]) for node, steps in found if steps), None)
