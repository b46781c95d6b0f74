"""Knows which steps are on the disk. The coordinator reads no disk: nodes report the steps in their `--persist` folder.

The folder should be the same shared one on all nodes, so a round resumes only from a step that all of its nodes find.
If only some find it, the folder is probably not mounted on the others. Steps of earlier runs of the job are there too.
A step is *useful* if it is not spoiled, and ranks do not differ in it. All functions here look only at useful steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coordinatord.core.keeping.bad_steps import has_doubts, has_spoiled, may_differ
from coordinatord.core.keeping.known import KeptState
from coordinatord.core.rounds.state.member import Member
from coordinatord.core.rounds.values.resume_point import ResumePoint
from coordinatord.protocol.kept_state import DiskStep, KeptStep, PersistedStep


def found_by(kept: KeptState, member: Member) -> tuple[PersistedStep, ...]:
    """Return the useful steps that a node finds, the newest first."""
    return _useful(kept, member.holding.persisted)


def _useful(kept: KeptState, steps: Sequence[PersistedStep]) -> tuple[PersistedStep, ...]:
    return tuple(step for step in steps if _is_useful(kept, step.at, step.run))


def _is_useful(kept: KeptState, at: KeptStep, maker: str) -> bool:
    """Whether a step on the disk that the run `maker` has made is useful."""
    return not (has_spoiled(kept.run.durable, at, maker) or (maker == kept.run.id and kept.index.differs(at)))


def finds_step(member: Member, step: PersistedStep) -> bool:
    """Whether a node finds a useful step that another node has found."""
    return any(each.run == step.run and each.at == step.at for each in member.holding.persisted)


def find_step(kept: KeptState, member: Member, point: ResumePoint) -> PersistedStep | None:
    """Return the step of a resume point, as a node finds it; None if it does not find it, or the step is in memory."""
    disk = point.disk
    if disk is None:
        return None
    wanted = disk.run, KeptStep(disk.round, point.step)
    return next((step for step in found_by(kept, member) if (step.run, step.at) == wanted), None)


def record_found(kept: KeptState, member: Member) -> None:
    """Record the steps that a node finds on the disk, or that it looks at no disk.

    If the newest step of this run proves to be gone, record the newest one that is left, and have nodes write at
    once the newest step that they hold.
    """
    found = kept.disk.found
    if member.persist is None:
        found.record_blind(member.node)
    else:
        found.record(member.node, found_by(kept, member), _newest_of_run(kept, member), member.holding.unusable)
    # While steps are in doubt, the newest right one must not be deleted. It changes only if a newer right one is found,
    # so only the steps of this member have to be looked at.
    found.agreed = agreed_step(kept, [member]) if has_doubts(kept.run.durable) else None
    gone = found.newest
    if gone is not None and found.is_newest_gone(kept.run.members):
        _replace_newest(kept)
        if _is_useful(kept, gone, kept.run.id):  # else it may still be there: `found_by` leaves it out
            found.lost, kept.disk.wanted = gone, True


def _newest_of_run(kept: KeptState, member: Member) -> KeptStep | None:
    """Return the newest step of this run that a node finds; None if it finds none."""
    return max((step.at for step in found_by(kept, member) if step.run == kept.run.id), default=None)


def drop_useless(kept: KeptState) -> None:
    """Forget the newest step on the disk, and the lost one, if a record has just spoiled it."""
    run, found = kept.run, kept.disk.found
    if found.newest is not None and has_spoiled(run.durable, found.newest, run.id):
        _replace_newest(kept)
    if found.lost is not None and has_spoiled(run.durable, found.lost, run.id):
        found.lost = None


def _replace_newest(kept: KeptState) -> None:
    """Record the newest step of this run that any member finds, in place of one that is gone or spoiled."""
    newest_of = {
        member.node: at for member in kept.run.members.values() if (at := _newest_of_run(kept, member)) is not None
    }
    newest = max(newest_of.values(), default=None)
    kept.disk.found.replace_newest(newest, {node for node, at in newest_of.items() if at == newest})


def newest_on_disk(kept: KeptState, nodes: Sequence[Member], before: KeptStep | None) -> ResumePoint | None:
    """Return the newest step that all of these nodes find, as a point to resume from; None if there is none.

    With `before`, a step of this run, only older steps count. All steps of earlier runs are older. There is at least
    one node.
    """
    first, *others = nodes
    for step in found_by(kept, first):
        is_older = before is None or step.run != kept.run.id or step.at < before
        if is_older and all(finds_step(member, step) for member in others):
            return _point(kept, step)
    return None


def _point(kept: KeptState, step: PersistedStep) -> ResumePoint:
    """Return a step as a point to resume from. One of an earlier run gets round 0: older than all steps of this run."""
    first, is_ours = step.parts[0], step.run == kept.run.id
    redone = kept.steps_redone_from(first.step)
    at_least = redone is not None and kept.may_redo_more
    disk, round_number = DiskStep(step.run, first.round), first.round if is_ours else 0
    return ResumePoint(
        round_number, first.step, first.world_size, first.shards, redone, disk=disk, redone_at_least=at_least
    )


def any_finder(kept: KeptState) -> tuple[str, PersistedStep] | None:
    """Return a node that finds steps, and the newest of its steps; None if no node does.

    It may be a node that has left: nodes that find less than it did still lack something.
    """
    for member in kept.run.members.values():
        if steps := found_by(kept, member):
            return member.node, steps[0]
    node, found = kept.disk.found.departed or ("", ())
    steps = _useful(kept, found)
    return (node, steps[0]) if steps else None


def agreed_step(kept: KeptState, members: Iterable[Member], before: KeptStep | None = None) -> PersistedStep | None:
    """Return the newest step on the disk in which all ranks had the same state; None if none is known.

    It must not be deleted once replicas have diverged. It is one that these nodes find, or the one that was known
    before (`found.agreed`). Ranks are taken to differ from the step `before` on. Without `before`, that begins after
    the last step of the present round with equal digests (`watching.agreed`). Steps of earlier rounds count unless they
    are in doubt.
    """
    run, known = kept.run, kept.disk.found.agreed
    confirmed = -1 if run.watching.agreed is None else run.watching.agreed
    first_unsure = before or KeptStep(run.durable.round, confirmed + 1)
    if run.durable.doubted is not None:  # all steps before the first one in doubt are known to be right
        first_unsure = max(first_unsure, run.durable.doubted)
    found = [step for member in members for step in found_by(kept, member)]
    right = (
        step
        for step in (*found, *(() if known is None else (known,)))
        if not may_differ(run.durable, step.at, step.run) and (step.run != run.id or step.at < first_unsure)
    )
    return max(right, key=lambda step: step.serial, default=None)
