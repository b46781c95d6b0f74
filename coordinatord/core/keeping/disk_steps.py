"""Finds steps on the disk by the reports of nodes: those that one node can use, and the newest one that all can use."""

from __future__ import annotations

from collections.abc import Sequence

from coordinatord.core.keeping.known import KeptState
from coordinatord.core.rounds.state.member import Member
from coordinatord.core.rounds.values.resume_point import ResumePoint
from coordinatord.protocol.kept_state import DiskStep, KeptStep, PersistedStep


def found_by(member: Member) -> tuple[PersistedStep, ...]:
    """Return the steps that a node finds on the disk and can use, the newest first."""
    return () if member.observed.kept is None else member.observed.kept.persisted


def unusable_to(member: Member) -> str:
    """Return why a node cannot use a step on the disk; empty if it can use all."""
    return "" if member.observed.kept is None else member.observed.kept.unusable


def find_step(member: Member, point: ResumePoint) -> PersistedStep | None:
    """Return the step of a resume point as a node finds it on the disk; None if it finds none, or for one in memory."""
    disk = point.disk
    if disk is None:
        return None
    wanted = disk.run, KeptStep(disk.round, point.step)
    return next((persisted for persisted in found_by(member) if (persisted.run, persisted.at) == wanted), None)


def newest_on_disk(kept: KeptState, nodes: Sequence[Member]) -> ResumePoint | None:
    """Return the newest step that all of these nodes find on the disk, as a point to resume from, if any.

    A step of an earlier run has the round 0: it is older than all steps of this run.
    """
    if not nodes:
        return None
    others = [{(persisted.run, persisted.at) for persisted in found_by(member)} for member in nodes[1:]]
    for persisted in found_by(nodes[0]):
        if all((persisted.run, persisted.at) in found for found in others):
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
    found = [(member.node, found_by(member)) for member in kept.run.members.values()]
    if kept.disk.found.departed is not None:
        found.append(kept.disk.found.departed)
    return next(((node, steps[0]) for node, steps in found if steps), None)
