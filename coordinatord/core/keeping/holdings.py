"""Records what nodes report about kept state, and decides at once what follows: steps to protect, and copies to make.

`record_report` is called for each report with news, and for any report while copies have to be planned
(`RunKeeping.awaits_report`). It adds to `KeptState.changes` if nodes have to be sent something else than before.
`record_progress` is called for every heartbeat: the progress of a write to the disk is no news, but shows that the
write has not stopped.
"""

from __future__ import annotations

from coordinatord.core.keeping.checkpoint_watch import NONE_YET
from coordinatord.core.keeping.copy_orders import plan_for
from coordinatord.core.keeping.disk_steps import find_step, record_found
from coordinatord.core.keeping.known import KeptState
from coordinatord.core.keeping.resume_choice import has_restored
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import Member
from coordinatord.protocol.kept_state import Holding, Restoring


def record_report(kept: KeptState, member: Member) -> None:
    """Record a member's report about kept state. If it is about another run, only the steps on the disk count."""
    run, observed = kept.run, member.observed
    holding = member.holding if observed.run == run.id else Holding(())
    before = kept.protection.steps
    has_new_parts = kept.record_parts(member.node, holding.parts)
    has_new_problem = kept.copies.record_problem(member.node, holding.copy_problem)
    if has_new_parts or has_new_problem:
        kept.protection.advance()
    # Copies are made only while a round runs: before and after, other nodes may come to take them (`copies_for`).
    has_planned = run.durable.state is State.RUNNING and _plan_copies(kept)
    if has_planned or kept.protection.steps != before:
        kept.changes += 1
    if member.durable.in_round and run.is_about_round(observed):
        _record_round(kept, member)
    _record_disk(kept, member)
    if member.durable.in_round:
        _record_lost_step(kept, member)


def record_progress(kept: KeptState, member: Member) -> None:
    """Record a member's progress in writing a step to the disk."""
    attempt, observed = kept.disk.attempt, member.observed
    if attempt is not None and observed.run == kept.run.id and (report := member.holding.persisting) is not None:
        attempt.record(member.node, report, member.lease.heard_at)


def _record_round(kept: KeptState, member: Member) -> None:
    """Record what a node of the current round reports about that round."""
    holding = member.holding
    _record_checkpoint(kept, member)
    if kept.first_states.record(member.node, holding.first_states, len(kept.run.durable.order)):
        kept.changes += 1
    if holding.restoring is Restoring.FAILED:
        kept.failed[member.node] = holding.problem
    kept.halting.record_promise(member)


def _plan_copies(kept: KeptState) -> bool:
    """Plan the copies of the protected steps that have no plan; return whether there were any.

    If all copies of a candidate exist already when it gets a new plan, it replaces the protected step here, and may
    make way for another candidate, which needs a plan too. It must not wait for a later report: nodes whose memory is
    full make no new step, and so report no change.
    """
    kept.copies.are_outdated = False  # they are planned now, so `awaits_report` asks for no further report
    has_planned = False
    while unplanned := [at for at in kept.protection.steps or () if at not in kept.copies.plans]:
        for at in unplanned:
            kept.copies.add(at, plan_for(kept, at))
        kept.protection.advance()
        has_planned = True
    return has_planned


def _record_checkpoint(kept: KeptState, member: Member) -> None:
    """Record the newest checkpoint of a node, and the newest step of this round that is whole."""
    run, holding, checkpoints, at = kept.run, member.holding, kept.checkpoints, kept.index.newest_whole
    checkpoints.begin_round(run.durable.round, run.durable.order)  # does nothing, except after a restart
    if holding.writes_checkpoints:
        checkpoints.record_checkpoint(
            member.node, NONE_YET if holding.checkpointed is None else holding.checkpointed, member.lease.heard_at
        )
    if at is not None and at.round == run.durable.round:
        checkpoints.record_saved_step(at.step, member.lease.heard_at)
    checkpoints.record_heard(member.node)


def _record_disk(kept: KeptState, member: Member) -> None:
    """Record a node's settings for the disk, and the steps that it finds there."""
    disk = kept.disk
    if member.persist is not None:
        every_s = member.persist.every_s
        disk.every_s = every_s if disk.every_s is None else min(every_s, disk.every_s)
    record_found(kept, member)
    newest = disk.found.newest
    if disk.pinned is not None and newest is not None and disk.pinned < newest:
        disk.drop()  # a restarted coordinator began it before it knew the newer step, see `FIRST_SCAN_S`
        kept.changes += 1


def _record_lost_step(kept: KeptState, member: Member) -> None:
    """Record that a node of the round no longer finds the step on the disk that it is to resume from.

    A node that misses the step already when the round begins is not told to read it, so it reports no failure. A node
    that was told reports one itself, and its own reason is kept.
    """
    point, stepped = kept.run.durable.resume, kept.run.durable.stepped
    if point is None or point.disk is None or stepped or has_restored(kept, member):
        return
    if find_step(kept, member, point) is None:
        kept.failed.setdefault(member.node, member.holding.unusable or "it is no longer on the disk")
