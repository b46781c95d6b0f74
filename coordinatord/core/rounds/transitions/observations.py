"""Makes nodes members of a run, and takes in their reports.

Most of a report only updates the live state, at once. News that has to be recorded, such as a success or a first step,
makes the node a *claimant* (`Run.claims`), and `record_claims` makes the records when the run is advanced. So a report
that comes while the store fails is not lost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from msgspec.structs import replace

from coordinatord.core.rounds.events import Connected
from coordinatord.core.rounds.queries import conditions
from coordinatord.core.rounds.queries.admission import other_command
from coordinatord.core.rounds.queries.reasons import Reasons
from coordinatord.core.rounds.queries.time_attribution import spent_with_steps
from coordinatord.core.rounds.state.durable import DurableMember, State
from coordinatord.core.rounds.state.member import Member, MemberState, Session
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.transitions import releases
from coordinatord.core.rounds.transitions.decision import Decision
from coordinatord.core.rounds.values.records import NodeJoined, NodeSucceeded, RoundsMissed, TrainingBegan
from coordinatord.protocol.fields import SENTENCE_MAX
from coordinatord.protocol.ip_addresses import plain_address
from coordinatord.protocol.messages import Join, Observed, Phase
from coordinatord.protocol.news import is_news
from coordinatord.protocol.text import clip

ROUNDS_REMEMBERED_MAX = 2**30
"""The highest round number that is taken from a report, half of the protocol's limit: at a round a second, 34 years.
The next round has a higher number, and after a wrong one near the limit there would be none."""


def new_member(event: Connected, now: float) -> Member:
    """Return the member that a node becomes if it is let in; nothing is changed yet."""
    join, peer, local = event.join, plain_address(event.peer_address), plain_address(event.local_address)
    return Member(DurableMember(join.node, join.incarnation, join.offer, peer, local, joined_at=now, token=event.token))


def add_member(run: Run, member: Member, join: Join, decision: Decision) -> Member:
    """Add a member to a run, and return the run's own object for it.

    A node that comes to a run that has ended gets only the outcome, without a record. If it never was in that run, the
    outcome says that it has come too late.
    """
    observed = join.observed
    if run.durable.state.ended:
        if run.durable.outcome is not None and observed.run != run.id:
            outcome = replace(run.durable.outcome, summary=clip(Reasons(run).came_late(decision.now)))
            member = Member(dataclasses.replace(member.durable, outcome=outcome))
        run.roll.add(member)
        return member
    workers = "1 worker" if member.offer.workers == 1 else f"{member.offer.workers} workers"
    other = other_command(run, join)
    differs = f"; its command differs from that of node {other.node}" if other is not None else ""
    by = f", by token {member.durable.token}" if member.durable.token else ""
    decision.record(
        NodeJoined(
            run.job,
            run.id,
            f"host {member.offer.host} at {member.session.peer_address} with {workers}{by}{differs}",
            node=member.node,
            incarnation=member.incarnation,
            offer=member.offer,
            peer_address=member.session.peer_address,
            local_address=member.session.local_address,
            round=min(observed.round, ROUNDS_REMEMBERED_MAX),
            token=member.durable.token,
        )
    )
    return run.members[member.node]


def begin_session(run: Run, member: Member, event: Connected, now: float) -> None:
    """Set a member's new session, and a remark for its user if something looks like a mistake."""
    join = event.join
    other = other_command(run, join)
    member.session = Session(
        plain_address(event.peer_address),
        plain_address(event.local_address),
        event.token,
        id=event.session,
        join=join,
        connected_at=now,
        differs_from="" if other is None else other.node,
    )
    member.remark = clip("; ".join(_remarks(run, member, join.observed.run)), SENTENCE_MAX)


def _remarks(run: Run, member: Member, last_run: str) -> Iterator[str]:
    """Yield what looks like a mistake at a join; `last_run` is the run in which the node was last, empty if in none."""
    if run.remark and not run.durable.last_end_reason:  # it is about how the run began
        yield run.remark
    if last_run and not run.durable.knows(last_run):
        yield f"this coordinator does not know run {last_run}, in which this node was: the job begins anew"
    if member.session.differs_from:
        yield (
            f"node {member.node} was started with another command than node {member.session.differs_from}, and"
            f" both are in job {run.job}: if that is not meant, give each training its own --job-id"
        )
    if run.keeping.has_disk and member.lacks_persist:
        yield f"node {member.node} was started without --persist, and others with it: start it with the same --persist"


def has_no_news(run: Run, member: Member, observed: Observed) -> bool:
    """Whether a report can change only the member's lease and progress: by steps, sections, and bytes on the disk.

    Most heartbeats are such reports. They need no check of the table, since ticks come for its deadlines. While a node
    of the round is silent, any report is news: that this member is heard may prove the other lost, see `node_lost`. The
    end of a worker is news as well: others may be overdue after it, see `exit_overdue`.
    """
    return (
        not is_news(observed, member.observed)
        and observed.pids == member.observed.pids
        and not observed.failure
        and not (member.lease.expired or run.roll.count(MemberState.SILENT))
        and not run.keeping.awaits_report
        and not _must_be_recorded(run, member, observed)
    )


def record_steps(run: Run, member: Member, before: Observed) -> None:
    """Record how far a member's workers are, and their section; `before` is its report before the last one."""
    observed, assignment = member.observed, member.durable.assignment
    if assignment is not None and _is_about_this_round(run, member, observed):
        if observed.steps and not run.steps_announced:
            run.steps_announced = True
            run.followed += 1  # nodes are no longer warned that hangs go unnoticed
        run.progress.record(assignment.group_rank, observed, before, member.lease.heard_at)
        run.watching.record_digests(member)


def steps_have_consequences(run: Run) -> bool:
    """Whether the table has to be checked because of the steps and the section that were just recorded.

    Steps may show that training has stalled, goes on again, or no longer repeats old steps, and that ranks have
    diverged. The first step may be overdue. When a section ends, its limit no longer counts.
    """
    if run.progress.sections.ended_at == run.roll.heard_at:  # the report that has just been heard ended one
        return True
    overdue_at = conditions.first_step_overdue(run)
    if overdue_at is not None and overdue_at <= run.roll.heard_at:
        return True
    shown = (conditions.caught_up, conditions.stalled, conditions.resumed, conditions.divergence_found)
    return any(condition(run) is not None for condition in shown)


def record_report(run: Run, member: Member) -> bool:
    """Record what follows from a member's last report; return whether all nodes have to be notified."""
    before, observed, now = member.state, member.observed, member.lease.heard_at
    member.lease.expired = False
    run.roll.place(member)
    concerns_all = run.keeping.report(member)
    has_check = run.judging.report(member)
    if member.state is MemberState.PREPARING:
        run.gathering.record_preparing(member, now)
    if member.state is MemberState.READY and before is not MemberState.READY:
        if before is MemberState.DISCONNECTED and member.readiness.has_arrived:
            run.gathering.begin_wait(member, now)  # its session was interrupted, so it is no new arrival
        else:
            run.gathering.record_ready(member, now)
    if member.state is MemberState.QUARANTINED:
        run.gathering.begin_wait(member, now)
    if observed.failure and not run.durable.state.ended and _is_about_this_round(run, member, observed):
        # Only the coordinator finds hangs and divergences: their texts become reasons of records.
        failure = replace(observed.failure, hang=None, hang_ranks=(), diverged=False)
        run.evidence.record_failure(member, failure, now)
    if not run.durable.state.ended and _is_about_this_round(run, member, observed):
        run.exits.record(run.durable.order[member.node], observed, now)
    if has_check or _must_be_recorded(run, member, observed):
        run.claims[member.node] = None
    return concerns_all


def _is_about_this_round(run: Run, member: Member, observed: Observed) -> bool:
    """Whether a member that is in the current round reports of it; late reports of an older one do not count."""
    return member.durable.in_round and run.is_about_round(observed)


def _must_be_recorded(run: Run, member: Member, observed: Observed) -> bool:
    """Whether `record_claims` has something to do for a report."""
    succeeds = (
        observed.phase is Phase.SUCCEEDED
        and not member.durable.succeeded
        and _is_about_this_round(run, member, observed)
    )
    knows_more = observed.run == run.id and run.durable.round < observed.round <= ROUNDS_REMEMBERED_MAX
    # If a node hands over already, the table releases it. A released one exits as soon as it hears of its release.
    wants_to_leave = observed.leaving or bool(member.drained)
    leaves = wants_to_leave and member.state not in {MemberState.HANDING_OVER, MemberState.RELEASED}
    return leaves or succeeds or knows_more or _reports_first_step(run, member, observed)


def _reports_first_step(run: Run, member: Member, observed: Observed) -> bool:
    """Whether a report has a step, and no step of the current round is recorded yet."""
    if not observed.steps or run.durable.stepped or run.durable.state is not State.RUNNING:
        return False
    return _is_about_this_round(run, member, observed) and any(step is not None for step in observed.steps)


def record_claims(run: Run, decision: Decision) -> None:
    """Record the later rounds, first steps, successes, health checks and wishes to leave that nodes have reported."""
    claimants, run.claims = [run.members[node] for node in run.claims], {}
    known = (member.observed.round for member in claimants if member.observed.run == run.id)
    latest = max((number for number in known if number <= ROUNDS_REMEMBERED_MAX), default=0)
    if latest > run.durable.round:
        reason = (
            f"nodes know of round {latest}, but the records end with round {run.durable.round}: they are an old copy"
        )
        decision.record(RoundsMissed(run.job, run.id, reason, latest))
    _record_first_step(run, claimants, decision)
    for member in claimants:
        # A node counts as running until its success is recorded.
        if member.state is MemberState.RUNNING and member.observed.phase is Phase.SUCCEEDED:
            reason = f"all workers of node {member.node} succeeded"
            decision.record(NodeSucceeded(run.job, run.id, reason, member.node, member.incarnation, run.durable.round))
        decision.record_all(run.judging.check(member, decision.cluster, decision.now))
        if member.leaves:
            _let_leave(run, member, decision)


def _record_first_step(run: Run, claimants: list[Member], decision: Decision) -> None:
    """Record the first step of the round, if claimants report it: the earliest one of them."""
    members = [member for member in claimants if _reports_first_step(run, member, member.observed)]
    if not members:
        return
    began_at, node = min(
        (member.lease.heard_at - (member.observed.step_age_s or 0.0), member.node) for member in members
    )
    step = max(step for step in run.members[node].observed.steps if step is not None)
    spent = spent_with_steps(run, began_at, step, decision.now)
    lost = run.durable.lost_steps(step)
    reason = f"a worker of node {node} has reported step {step}" + (f"; {lost}" if lost else "")
    run.progress.record_start(run.durable.entered_at)  # since when the run is RUNNING: the record sets it anew
    decision.record(TrainingBegan(run.job, run.id, reason, run.durable.round, spent, step))


def _let_leave(run: Run, member: Member, decision: Decision) -> None:
    """Release a member that is to leave, if it may go now; else add it to `run.leaving`, or wait for its next report.

    A node in `run.leaving` stops the round, and goes at its end. A node that has workers of an older round, or no
    session, is not added: its next report makes it a claimant again.
    """
    if member.durable.outcome is not None:
        return  # its release and this report have crossed
    has_ended = member.state in {MemberState.STOPPED, MemberState.SUCCEEDED} and run.durable.state is State.STOPPING
    if has_ended and run.keeping.may_be_needed(member):
        run.leaving.add(member.node)  # once all have stopped, it is known whether others need its kept state
    elif member.state in {MemberState.READY, MemberState.QUARANTINED}:
        releases.release_or_hand_over(run, [member], decision)  # others may need what it keeps of earlier rounds
    elif has_ended or member.state in {MemberState.PREPARING, MemberState.SUCCEEDED}:
        releases.release_leaving(run, member, decision)  # its part in the round is over, or has not begun
    elif member.durable.in_round:
        run.leaving.add(member.node)


def cancel_drain(run: Run, member: Member, now: float) -> None:
    """Let a member stay since its drain is cancelled, unless its own user wants it to leave."""
    member.drained = ""
    if not member.observed.leaving:
        before = member.state
        run.leaving.discard(member.node)
        member.hands_over = False
        run.roll.place(member)
        if member.state is MemberState.READY and before is not MemberState.READY:
            run.gathering.record_ready(member, now)  # it did not count as ready while it was to leave
