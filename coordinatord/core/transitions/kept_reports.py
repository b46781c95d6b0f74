"""Takes in what nodes report of the state that they keep, and decides anew which steps must not be overwritten.

The same report has what a node finds on the disk, how far it has come with what it writes there, which checkpoints its
workers have written, and, in a planned stop, after which step they stand still.
"""

from __future__ import annotations

from coordinatord.core.queries.copying import plan_for
from coordinatord.core.queries.persistence import found_by, unusable_to
from coordinatord.core.state.checkpoint_watch import NONE_YET
from coordinatord.core.state.durable import State
from coordinatord.core.state.halt_promises import can_halt
from coordinatord.core.state.member import Member
from coordinatord.core.state.run import Run
from coordinatord.protocol.kept_state import Holding, Restoring
from coordinatord.protocol.messages import Phase


def note(run: Run, member: Member, now: float) -> None:
    """Take in what a member reports that it keeps; state of another run does not count."""
    observed, kept = member.observed, member.observed.kept
    parts = () if kept is None or observed.run != run.id else kept.parts
    problem, before = kept.copy_problem if kept is not None else "", run.kept.protected
    has_changed = run.kept.note(member.node, parts) | run.kept.note_no_copies(member.node, problem)
    is_newer = has_changed and run.kept.advance()
    has_planned = run.durable.state is State.RUNNING and _plan_copies(run)
    if has_planned or run.kept.protected != before:
        run.revision += 1
    here = observed.run == run.id and observed.round == run.durable.round and member.durable.in_round
    if here:
        _note_checkpoint(run, member, kept, is_newer=is_newer)
    if here and kept is not None and run.kept.note_first_states(member.node, kept.first_states, len(run.durable.order)):
        run.revision += 1
    if here and kept is not None and kept.restoring is Restoring.FAILED:
        run.kept.failed[member.node] = kept.problem
    if here:
        _note_promise(run, member, kept)
    _note_disk(run, member, now)


def _note_promise(run: Run, member: Member, kept: Holding | None) -> None:
    """Take in after which step the workers of a node stand still, or that they cannot.

    The latter is news of a node that was not heard when the round was stopped. Then there is no step that all keep.
    """
    if kept is not None and kept.halts_after is not None:
        run.halting.promised.setdefault(member.node, kept.halts_after)
    elif run.halting.wanted and member.observed.phase is Phase.RUNNING and not can_halt([member]):
        run.halting.wanted = False
        run.revision += 1


def _plan_copies(run: Run) -> bool:
    """Plan the copies of the protected steps that have no plan; return whether there were any.

    All copies of a candidate may be there already when its plan is made anew. Nodes may have no place for another step
    before the candidate is the whole one, so no later report would change anything.
    """
    run.kept.plans_void = False
    if not run.kept.unplanned:
        return False
    while unplanned := run.kept.unplanned:
        for at in unplanned:
            run.kept.note_plan(at, plan_for(run, at))
        run.kept.advance()
    return True


def _note_checkpoint(run: Run, member: Member, kept: Holding | None, *, is_newer: bool) -> None:
    """Take in which checkpoint a node has written, and whether a step of this round became whole by its report."""
    checkpoints, at = run.checkpoints, run.kept.newest_whole
    checkpoints.begin(run.durable.round, run.durable.order)
    if kept is not None and kept.writes_checkpoints:
        checkpoints.note(member.node, NONE_YET if kept.checkpointed is None else kept.checkpointed, member.heard_at)
    if is_newer and at is not None and at.round == run.durable.round:
        checkpoints.note_whole(member.heard_at)
    checkpoints.note_known(member.node)


def _note_disk(run: Run, member: Member, now: float) -> None:
    persisting, report = run.kept.disk, None if member.observed.kept is None else member.observed.kept.persisting
    found = found_by(member)
    persisting.note_found(member.node, found, unusable_to(member))
    ours = [persisted.at for persisted in found if persisted.run == run.id]
    persisting.step = max([*ours, *([] if persisting.step is None else [persisting.step])], default=None)
    if persisting.work is not None and report is not None and member.observed.run == run.id:
        persisting.work.note(member.node, report, now)
