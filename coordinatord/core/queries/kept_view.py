"""What nodes keep of the training state, as records of the HTTP API."""

from __future__ import annotations

from coordinatord.core.queries.copying import copy_problem
from coordinatord.core.queries.kept_reasons import memory_of, unkept
from coordinatord.core.state.member import Member
from coordinatord.core.state.run import Run
from coordinatord.protocol.http.kept_answers import KeptStatus, NodeKeptStatus


def kept_view(run: Run) -> KeptStatus | None:
    """Return what the nodes of a run keep; None if they keep nothing and the round resumed from nothing."""
    resume = run.durable.resume
    if resume is None and not run.kept and run.kept.disk.every_s is None:
        return None
    persisting = run.kept.disk
    newest = run.kept.newest_whole
    held = [member.observed.kept for member in run.members.values() if member.observed.kept is not None]
    return KeptStatus(
        step=None if newest is None else newest.step,
        resumed=None if resume is None else resume.step,
        resumed_from="" if resume is None else memory_of(resume),
        redone=None if resume is None else resume.redone,
        interval_steps=max((kept.interval_steps for kept in held if kept.interval_steps is not None), default=None),
        save_s=max((kept.save_s for kept in held if kept.save_s is not None), default=None),
        used_bytes=sum(kept.used_bytes for kept in held),
        skipped=sum(kept.skipped for kept in held),
        copied=None if (copied := run.kept.copied) is None else copied.step,
        copy_problem=copy_problem(run),
        unkept=unkept(run),
        disk_step=None if persisting.step is None else persisting.step.step,
        disk_writing=None if persisting.work is None else persisting.work.at.step,
        disk_problem=persisting.problem,
    )


def node_kept_view(run: Run, member: Member) -> NodeKeptStatus | None:
    """Return what a node keeps; None if it keeps nothing."""
    kept = member.observed.kept
    if kept is None:
        return None
    copied_to, copied_at = run.kept.copy_of(member.node) or ("", None)
    return NodeKeptStatus(
        used_bytes=kept.used_bytes,
        limit_bytes=None if member.keeper is None else member.keeper.limit_bytes,
        interval_steps=kept.interval_steps,
        save_s=kept.save_s,
        skipped=kept.skipped,
        restoring=kept.restoring,
        problem=kept.problem,
        copied_to=copied_to,
        copied_step=None if copied_at is None else copied_at.step,
    )
