"""Takes in what nodes report that they hold, and decides anew which steps must not be overwritten."""

from __future__ import annotations

import math

from coordinatord.core.keeping.checkpoint_watch import NONE_YET
from coordinatord.core.keeping.copying import plan_for
from coordinatord.core.keeping.known import KeptState
from coordinatord.core.keeping.persistence import found_by, unusable_to
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import Member
from coordinatord.protocol.kept_state import Holding, Restoring


def take_in(kept: KeptState, member: Member, now: float) -> None:
    """Take in what a member reports that it keeps; state of another run does not count."""
    run, observed, holding = kept.run, member.observed, member.observed.kept
    parts = () if holding is None or observed.run != run.id else holding.parts
    problem, before = holding.copy_problem if holding is not None else "", kept.protection.steps
    has_changed = kept.note_parts(member.node, parts) | kept.copies.note_problem(member.node, problem)
    is_newer = has_changed and kept.protection.advance()
    has_planned = run.durable.state is State.RUNNING and _plan_copies(kept)
    if has_planned or kept.protection.steps != before:
        kept.changes += 1
    if observed.run == run.id and observed.round == run.durable.round and member.durable.in_round:
        _note_round(kept, member, holding, is_newer=is_newer)
    _note_disk(kept, member, now)


def _note_round(kept: KeptState, member: Member, holding: Holding | None, *, is_newer: bool) -> None:
    """Take in what a node of the current round reports about that round."""
    run = kept.run
    _note_checkpoint(kept, member, holding, is_newer=is_newer)
    if holding is not None and kept.first_states.note(member.node, holding.first_states, len(run.durable.order)):
        kept.changes += 1
    if holding is not None and holding.restoring is Restoring.FAILED:
        kept.failed[member.node] = holding.problem
    if kept.halting.note_promise(member, holding):
        kept.changes += 1


def _plan_copies(kept: KeptState) -> bool:
    """Plan the copies of the protected steps that have no plan; return whether there were any.

    All copies of a candidate may be there already when its plan is made anew. Nodes may have no place for another step
    before the candidate is the whole one, so no later report would change anything.
    """
    kept.copies.are_void, has_planned = False, False
    while unplanned := [at for at in kept.protection.steps or () if at not in kept.copies.plans]:
        for at in unplanned:
            kept.copies.note_plan(at, plan_for(kept, at))
        kept.protection.advance()
        has_planned = True
    return has_planned


def _note_checkpoint(kept: KeptState, member: Member, holding: Holding | None, *, is_newer: bool) -> None:
    """Take in which checkpoint a node has written, and whether a step of this round became whole by its report."""
    run, checkpoints, at = kept.run, kept.checkpoints, kept.index.newest_whole
    checkpoints.begin(run.durable.round, run.durable.order)
    if holding is not None and holding.writes_checkpoints:
        checkpoints.note(
            member.node, NONE_YET if holding.checkpointed is None else holding.checkpointed, member.lease.heard_at
        )
    if is_newer and at is not None and at.round == run.durable.round:
        checkpoints.note_whole(member.lease.heard_at)
    checkpoints.note_known(member.node)


def _note_disk(kept: KeptState, member: Member, now: float) -> None:
    disk, report = kept.disk, None if member.observed.kept is None else member.observed.kept.persisting
    if member.keeper is not None and member.keeper.persist is not None:
        disk.every_s = min(member.keeper.persist.every_s, disk.every_s or math.inf)
    found = found_by(member)
    disk.found.note(member.node, found, unusable_to(member))
    ours = [persisted.at for persisted in found if persisted.run == kept.run.id]
    disk.step = max([*ours, *([] if disk.step is None else [disk.step])], default=None)
    if disk.work is not None and report is not None and member.observed.run == kept.run.id:
        disk.work.note(member.node, report, now)
