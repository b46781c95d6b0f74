"""The actions of the table: each carries out a row, and records the row's reason if it records anything.

An action changes the durable state only by `decision.record`, which applies the record at once. It sends nothing by
itself: `decision.notify` marks nodes that may have to be sent something.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from coordinatord.core.rounds.effects import Look
from coordinatord.core.rounds.queries import past_round
from coordinatord.core.rounds.queries.next_round import can_spare, candidates, master_address, reserves
from coordinatord.core.rounds.queries.past_round import node_gone, report_on
from coordinatord.core.rounds.queries.reasons import Reasons, count_starts, pause_text
from coordinatord.core.rounds.queries.time_attribution import (
    spent,
    spent_at_the_end,
    spent_in_silence,
    spent_since_newest_step,
    spent_when_broken,
    spent_when_stopped,
    spent_with_new_steps,
)
from coordinatord.core.rounds.state.member import MAY_HAVE_WORKERS, UNHEARD, Member, MemberState
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.transitions import releases
from coordinatord.core.rounds.transitions.decision import Decision
from coordinatord.core.rounds.values import records
from coordinatord.core.rounds.values.ranks import assign
from coordinatord.core.rounds.values.records import AGE_MAX, Reason, Record
from coordinatord.core.rounds.values.root_cause import WorkerFailure
from coordinatord.core.rounds.values.time_ledger import Activity, Spent
from coordinatord.protocol.exit_codes import ExitCode, shell_exit_code
from coordinatord.protocol.fields import DURATION_S_MAX, SENTENCE_MAX, WINDOW_RESTARTS_MAX
from coordinatord.protocol.messages import Outcome, Report, Result
from coordinatord.protocol.text import clip

# Actions of rows


def form_round(run: Run, reason: Reason, decision: Decision) -> None:
    """Assign ranks to the ready nodes; nodes beyond the maximum remain as spares."""
    nodes, number = candidates(run), run.durable.round + 1
    point = run.keeping.resume_point(nodes)
    spoiled, doubted = run.keeping.bad_steps(point)
    decision.record(
        records.RoundFormed(
            run.job,
            run.id,
            reason.sentence,
            round=number,
            nodes=tuple(assign([member.seat for member in nodes])),
            master_address=master_address(nodes[0], nodes),
            master_port=nodes[0].observed.port,
            spent=spent(run, decision.now),
            resume=point,
            spoiled=spoiled,
            doubted=doubted,
            why_anew=clip(run.keeping.resume_text(nodes).removeprefix("; "), SENTENCE_MAX) if point is None else "",
        )
    )
    hosts, why = {member.offer.host for member in nodes}, f"round {number} of job {run.job} was formed on its hosts"
    for each in decision.cluster.live:
        ended = each.judging.stop_tests(why, hosts)  # tests would slow the workers
        if ended is not None:
            decision.record(ended)
            decision.notify_all(each)
    decision.notify_all(run)


def enlist_quarantined(run: Run, _: Reason, decision: Decision) -> None:
    """Enlist as many quarantined nodes as a round lacks, in the order of their arrival."""
    for member in reserves(run):
        member.readiness.enlisted = True
        run.roll.place(member)
        run.gathering.begin_wait(member, decision.now)
    decision.notify_all(run)


def record_started(run: Run, reason: Reason, decision: Decision) -> None:
    """Record that all workers of the round are started, and how."""
    steps, so_far = run.durable.reports_steps, spent(run, decision.now)
    decision.record(records.RoundStarted(*_round_fields(run, reason), steps, so_far, count_starts(run)))


_ACTIVITIES: dict[str, tuple[Callable[..., Record], Callable[[Run, float], Spent]]] = {
    "caught_up": (records.TrainingCaughtUp, spent_with_new_steps),
    "fell_silent": (records.NodesSilent, spent_in_silence),
    "first_step_overdue": (records.FirstStepOverdue, spent),
    "heard_again": (records.NodesHeard, spent),
    "resumed": (
        records.TrainingResumed,
        lambda run, now: spent_since_newest_step(run, run.durable.activity_at_work, now),
    ),
    "stalled": (records.TrainingStalled, lambda run, now: spent_since_newest_step(run, Activity.STALLED, now)),
}
"""The record with which the time of a round goes to another activity, and the time spent so far, by condition."""


def record_activity(run: Run, reason: Reason, decision: Decision) -> None:
    """Record that time goes to another activity from now on. The round goes on, since each of these may be harmless."""
    kind, spent_by = _ACTIVITIES[reason.condition]
    decision.record(kind(*_round_fields(run, reason), spent_by(run, decision.now)))


def record_exit_overdue(run: Run, reason: Reason, decision: Decision) -> None:
    """Record that some workers do not end. The round goes on, since they may still save or evaluate."""
    decision.record(records.ExitOverdue(*_round_fields(run, reason)))


def record_divergence(run: Run, _: Reason, decision: Decision) -> None:
    """Record that ranks have different states."""
    divergence = run.watching.divergence
    assert divergence is not None  # noqa: S101 - it is the row's condition
    decision.record(divergence)


def stop_hung(run: Run, reason: Reason, decision: Decision) -> None:
    """Stop a round in which one worker holds up all others; this is charged as a failure of that worker."""
    _stop_for(run.watching.hang, run, reason, decision)


def stop_diverged(run: Run, reason: Reason, decision: Decision) -> None:
    """Stop a round whose replicas have diverged; this is charged as a failure of a rank that is wrong."""
    _stop_for(run.watching.divergence_failure(decision.now), run, reason, decision)


def stop_succeeded(run: Run, reason: Reason, decision: Decision) -> None:
    """Stop a round whose workers have all succeeded, as its nodes have to write the last step before the run ends."""
    fields, so_far = _round_fields(run, reason), spent_at_the_end(run, decision.now)
    decision.record(
        records.RoundStopped(*fields, planned=True, first_failure=None, spent=so_far, condition=reason.condition)
    )
    decision.notify_all(run)


def stop_planned(run: Run, reason: Reason, decision: Decision) -> None:
    """Stop the round on purpose: workers get the time to save their state."""
    _stop(run, reason, decision, planned=True)


def stop_at_once(run: Run, reason: Reason, decision: Decision) -> None:
    """Stop a round that cannot go on. No worker gets time to save, since most are blocked in a collective."""
    _stop(run, reason, decision, planned=False)


def advance_keeping(run: Run, _: Reason, decision: Decision) -> None:
    """Let the keeping wing do the work that is due; it records nothing."""
    for member in run.keeping.act(decision.now):
        decision.notify(run, member)


def advance_judging(run: Run, _: Reason, decision: Decision) -> None:
    """Let the judging wing do the work that is due."""
    decision.record_all(run.judging.act(decision.cluster, decision.now))
    decision.notify_all(run)


def advance_watching(run: Run, _: Reason, decision: Decision) -> None:
    """Record what the last looks have shown, or else look again where the workers are."""
    match run.watching.act(decision.now):
        case Look() as look:
            decision.looks.append(look)
        case Record() as record:
            decision.record(record)


def end_round(run: Run, reason: Reason, decision: Decision) -> None:
    """Judge the round, charge the budget if a worker failed by itself, and release the nodes that are to leave."""
    judged = past_round.verdict(run)
    report = report_on(run, judged.root_cause, decision.now)
    decision.record_all(run.judging.judge(report, decision.cluster, decision.now))
    is_left_out = report is not None and can_spare(run, report.node)
    repeats = 0 if is_left_out else past_round.repeats(run)  # without that host, the error need not come again
    charged = report is not None and report.cause.is_charged
    pause_s = 0.0 if run.restart_asked else run.policy.pause_after(repeats)
    decision.record(
        records.RoundEnded(
            run.job,
            run.id,
            reason.sentence + (f"; {pause_text(pause_s, run.durable.round + 1, repeats)}" if pause_s else ""),
            run.durable.round,
            charged=charged,
            restarts_used=run.durable.restarts_used + charged,
            report=report,
            spent=spent(run, decision.now),
            repeats=repeats,
            reached=run.furthest,
            charged_at=_charged_at(run, charged=charged),
            futile=past_round.futile(run),
            excused=report_on(run, judged.excused, decision.now),
        )
    )
    for member in run.keeping.end_round(decision.now):
        decision.notify(run, member)
    releases.release_or_hand_over(run, [run.members[node] for node in sorted(run.leaving)], decision)
    # Nodes that were released while they were in the round, and fell silent: their leases are over, so nothing else
    # will remove them.
    for member in [member for member in run.roll.in_state(MemberState.RELEASED) if member.lease.expired]:
        decision.close(member)
        run.remove(member)
    for member in run.roll.in_state(MemberState.READY, MemberState.QUARANTINED):
        run.gathering.begin_wait(member, decision.now)
    decision.notify_all(run)


def _charged_at(run: Run, *, charged: bool) -> tuple[float, ...]:
    """Return when restarts were charged within the window, including the round that is over."""
    if run.spec.restart_window_s is None:
        return ()
    known = past_round.restarts_within(run, past_round.over_at(run))
    return (*known, past_round.over_at(run))[-WINDOW_RESTARTS_MAX:] if charged else known


def lose_corroborated(run: Run, reason: Reason, decision: Decision) -> None:
    """Count the node that is proved to be gone as lost before its time to reconnect is over."""
    gone = node_gone(run)
    assert gone is not None  # noqa: S101 - it is the row's condition
    lose(run, gone, reason.sentence, decision)


def leave_behind(run: Run, reason: Reason, decision: Decision) -> None:
    """End the round without the nodes that could not end their workers in time; they remain members."""
    for member in list(run.roll.in_state(*MAY_HAVE_WORKERS)):
        fields, silent_s = _node_fields(run, member, reason.sentence), _silent_for(member, decision.now)
        decision.record(records.NodeLeftBehind(*fields, run.durable.round, silent_s))


def end_as_failed(run: Run, reason: Reason, decision: Decision) -> None:
    """End the run because its workers fail for good, with the exit code of the root cause."""
    cause = past_round.verdict(run).root_cause
    code = shell_exit_code(cause.failure.exit_code) if cause else ExitCode.INTERNAL
    why = past_round.no_restart(run)
    if why is not None and why.gets_nowhere:
        code = ExitCode.NO_PROGRESS
    reasons = Reasons(run)
    reason = replace(reason, sentence=f"{reason.sentence} ({reasons.budget}){reasons.last_step}")
    report = report_on(run, cause, decision.now)
    decision.record_all(run.judging.judge(report, decision.cluster, decision.now))
    end_run(run, reason, Result.FAILED, code, decision, report)


def end_as_asked(run: Run, reason: Reason, decision: Decision) -> None:
    """End the run because an operator wants it; its last round has been judged."""
    end_run(run, reason, Result.STOPPED, ExitCode.STOPPED, decision)


def end_as_abandoned(run: Run, reason: Reason, decision: Decision) -> None:
    """End the run because no node is left to go on with it."""
    end_run(run, reason, Result.FAILED, ExitCode.TEMPFAIL, decision)


def end_as_left(run: Run, reason: Reason, decision: Decision) -> None:
    """End the run because its last node left on purpose; nodes that were lost before may open another run."""
    end_run(run, reason, Result.LEFT, ExitCode.TEMPFAIL, decision)


def end_as_succeeded(run: Run, reason: Reason, decision: Decision) -> None:
    """End the run with success: all nodes exit at once. Spares get an outcome of their own."""
    for member in run.members.values():
        durable = member.durable
        # A younger process of a node of the round has taken part in nothing, and is no spare.
        if not durable.has_taken_part and member.node not in run.durable.order and durable.outcome is None:
            releases.release_spare(run, member, reason.sentence, decision)
    end_run(run, reason, Result.SUCCEEDED, ExitCode.OK, decision)


# Actions that others call too


def lose(run: Run, member: Member, reason: str, decision: Decision) -> None:
    """Record that a node is lost. This may be why the round ends, unless all workers of the node had succeeded."""
    decision.close(member)
    silent_s, leaving = _silent_for(member, decision.now), member.observed.leaving
    if member.durable.in_round and not member.durable.succeeded:
        run.evidence.record_loss(member.lived_at)
    silent = member.session.id is not None  # its connection is open, so its process has not just ended
    decision.record(records.NodeLost(*_node_fields(run, member, reason), silent_s, leaving, silent))


def end_run(
    run: Run, reason: Reason, result: Result, exit_code: int, decision: Decision, report: Report | None = None
) -> None:
    """End the run with this result; every node exits with `exit_code`."""
    is_broken = run.durable.state.at_work and result is not Result.SUCCEEDED
    so_far = spent_when_broken(run, decision.now) if is_broken else spent_at_the_end(run, decision.now)
    outcome = Outcome(result, exit_code, clip(reason.sentence))
    decision.record(
        records.RunEnded(
            run.job,
            run.id,
            reason.sentence,
            outcome,
            report,
            so_far,
            condition=reason.condition,
            step=run.last_step,
            spoiled=run.durable.spoiled,
            doubted=run.durable.doubted,
        )
    )
    decision.notify_all(run)


def loss_reason(member: Member) -> str:
    """Describe how a node was lost, as the reason of its record."""
    if member.session.revoked:
        return "its access token is no longer valid"
    if member.observed == UNHEARD:
        return "it did not come back after the coordinator was started again"
    return (
        "its connection closed, and it did not come back" if member.session.id is None else "silent for its whole lease"
    )


# Helpers


def _round_fields(run: Run, reason: Reason) -> tuple[str, str, str, int]:
    return run.job, run.id, reason.sentence, run.durable.round


def _node_fields(run: Run, member: Member, reason: str) -> tuple[str, str, str, str, int]:
    return run.job, run.id, reason, member.node, member.incarnation


def _stop_for(failure: WorkerFailure | None, run: Run, reason: Reason, decision: Decision) -> None:
    """Stop the round for a failure that the watching wing has found, and no node reports."""
    assert failure is not None  # noqa: S101 - it is the row's condition
    run.evidence.failures[failure.node] = failure
    _stop(run, reason, decision, planned=False)


def _stop(run: Run, reason: Reason, decision: Decision, *, planned: bool) -> None:
    """Stop the round; `planned` if workers get the time to save their state. Nodes that are silent count as lost."""
    is_well = planned and not (run.roll.count(MemberState.SILENT) or run.roll.doubtful)
    so_far = spent_when_stopped(run, decision.now) if is_well else spent_when_broken(run, decision.now)
    first = _first_failure(run, decision.now)
    decision.record(
        records.RoundStopped(*_round_fields(run, reason), planned, first, so_far, condition=reason.condition)
    )
    for member in [member for member in run.roll.inside if member.lease.expired and member.durable.outcome is None]:
        lose(run, member, loss_reason(member), decision)
    decision.notify_all(run)


def _silent_for(member: Member, now: float) -> float:
    """Return for how many seconds a node has been silent, for a record."""
    return min(max(0.0, now - member.silent_since), AGE_MAX)


def _first_failure(run: Run, now: float) -> records.FirstFailure | None:
    """Return the earliest failure so far with its age, for a record: a restarted daemon may not hear of it again."""
    first = run.evidence.first
    if first is None:
        return None
    age_s = min(max(0.0, now - first.at), DURATION_S_MAX)
    return records.FirstFailure(first.node, first.host, replace(first.failure, age_s=age_s))
