"""Applies records to the durable state, as a daemon makes them and as it reads them after a restart.

No other code changes the durable state, so a restarted daemon has the same one as the daemon before it. That also means
that nothing here may read the clock, the policy or the live state. `Cluster.follow` updates the live state.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from coordinatord.core.rounds.queries import conditions
from coordinatord.core.rounds.state.durable import (
    EARLIER_MAX,
    FORGOTTEN_MAX,
    LOST_MAX,
    LOST_ROUNDS,
    RELEASED_MAX,
    DurableCluster,
    DurableMember,
    DurableRun,
    EarlierRun,
    LostMember,
    State,
)
from coordinatord.core.rounds.values import records
from coordinatord.core.rounds.values.judged_host import JudgedHost
from coordinatord.core.rounds.values.resume_point import SpoiledStep, with_spoiled
from coordinatord.core.rounds.values.root_cause import LostNode, WorkerFailure
from coordinatord.core.rounds.values.round_history import RoundHistory
from coordinatord.core.rounds.values.time_ledger import Activity, Ledger, Spent
from coordinatord.hints.brief_cause import cause_in_brief
from coordinatord.protocol.errors import CompleteMap, InternalError
from coordinatord.protocol.messages import Assignment, Report, Result


class HistoryError(InternalError):
    """A record does not fit those before it, and has changed nothing. If it was read, another program wrote it."""


def apply(cluster: DurableCluster, record: records.Record, at: float) -> None:
    """Apply a record that was made at `at`, by the coordinator's clock. Raises `HistoryError`."""
    match record:
        case records.NodeDrained():
            cluster.drained.setdefault(record.node, {})[record.only_job] = record.reason
        case records.NodeUndrained():
            cluster.drained.pop(record.node, None)
        case records.HostJudged():
            _judge_host(cluster, record, at)
        case records.RunOpened():
            earlier = _earlier(cluster.jobs.pop(record.job, None))  # popped, so that the newest job comes last
            cluster.jobs[record.job] = DurableRun(
                record.job, record.run, record.spec, record.opener, entered_at=at, ledger=Ledger(at), earlier=earlier
            )
        case records.JobForgotten():
            _set_newest(cluster.forgotten, record.run, record.reason, FORGOTTEN_MAX)
            last = cluster.jobs.get(record.job)
            if last is not None and last.id == record.run:
                del cluster.jobs[record.job]
        case _:
            run = cluster.jobs.get(record.job)
            if run is None or run.id != record.run:
                text = f"run {record.run} of job {record.job} is not its current run"
                raise HistoryError(text, where="changes", state=None if run is None else run.id, stimulus=record)
            _CHANGES[type(record)](run, record, at)
            run.rounds.follow(record)


def _judge_host(cluster: DurableCluster, record: records.HostJudged, at: float) -> None:
    """Replace what is on record of a host, and forget hosts whose time on record is over."""
    cluster.hosts.pop(record.node, None)
    known = JudgedHost(record.charges, record.quarantined, record.by, at)
    if known.forgotten_at >= at:
        cluster.hosts[record.node] = known
        cluster.host_forgotten_at = min(cluster.host_forgotten_at, known.forgotten_at)
    if cluster.host_forgotten_at < at:
        cluster.hosts = {host: known for host, known in cluster.hosts.items() if known.forgotten_at >= at}
        cluster.host_forgotten_at = min((known.forgotten_at for known in cluster.hosts.values()), default=math.inf)


def _member(run: DurableRun, record: records.Record, node: str) -> DurableMember:
    """Return a member that a record names. Raises `HistoryError`."""
    member = run.members.get(node)
    if member is None:
        text = f"run {run.id} of job {run.job} knows no node {node!r}"
        raise HistoryError(text, where="changes", state=run.state, stimulus=record)
    return member


def _member_or_released(run: DurableRun, record: records.NodeRecord) -> DurableMember:
    """Return a node that a record names, which may have been released in its round. Raises `HistoryError`.

    Such a node is a member until its round ends. Without the records of that round, which the store deletes in time, it
    is in no round when it is released, and so no member any more.
    """
    return run.released.get(record.node) or _member(run, record, record.node)


def _earlier(run: DurableRun | None) -> tuple[EarlierRun, ...]:
    """Return the summaries of a job's last run and of those before it, for its next run."""
    if run is None:
        return ()
    if run.outcome is None:
        return run.earlier  # its end is missing in the records
    spent, code = run.ledger.settled, run.outcome.exit_code
    doubted = None if run.state is State.SUCCEEDED else run.doubted
    last = EarlierRun(run.id, run.state, run.reason, run.last_step, spent, run.entered_at, code, run.spoiled, doubted)
    return (last, *run.earlier)[:EARLIER_MAX]


def _set_newest(entries: dict[str, Any], key: str, value: object, most: int) -> None:
    """Set an entry, move it to the end, and delete the oldest one if there are more than `most`."""
    entries.pop(key, None)
    entries[key] = value
    if len(entries) > most:
        del entries[next(iter(entries))]


def _node_joined(run: DurableRun, record: records.NodeJoined, at: float) -> None:
    run.released.pop(record.node, None)  # perhaps the process before it: no record says when a released one has left
    run.members.pop(record.node, None)  # so that members are in the order in which they joined
    run.members[record.node] = DurableMember(
        node=record.node,
        incarnation=record.incarnation,
        offer=record.offer,
        peer_address=record.peer_address,
        local_address=record.local_address,
        joined_at=at,
        token=record.token,
    )
    run.emptied_at = None
    if not run.order:
        # If the records were lost, the numbers of rounds continue from the last one that nodes remember.
        run.round = max(run.round, record.round)


def _node_lost(run: DurableRun, record: records.NodeLost, at: float) -> None:
    member = _member_or_released(run, record)
    run.members.pop(record.node, None)
    run.released.pop(record.node, None)
    if member.in_round and not member.succeeded:
        run.losses.append(LostNode(member.node, at - record.silent_s))
    if not record.leaving:
        run.lost.append(LostMember(member.node, member.offer.host, record.reason, run.round, at, record.silent))
        del run.lost[:-LOST_MAX]
    run.last_left = record.leaving
    if not run.members:
        run.emptied_at = None if record.leaving else at


def _node_released(run: DurableRun, record: records.NodeReleased, _: float) -> None:
    member = _member(run, record, record.node)
    run.last_left = record.outcome.result is Result.LEFT
    member.outcome = record.outcome
    if not member.in_round:  # else `_leave_round` releases it
        _release(run, member)


def _release(run: DurableRun, member: DurableMember) -> None:
    """Move a member that has its outcome, and no part in a round, to the released ones."""
    run.members.pop(member.node, None)
    _set_newest(run.released, member.node, member, RELEASED_MAX)
    if not run.members:
        run.emptied_at = None  # no worker of it can live, so nothing has to be waited for


def _node_succeeded(run: DurableRun, record: records.NodeSucceeded, _: float) -> None:
    _member_or_released(run, record).succeeded = True
    run.succeeded.add(record.node)


def _node_left_behind(run: DurableRun, record: records.NodeLeftBehind, at: float) -> None:
    member = _member(run, record, record.node)
    run.losses.append(LostNode(member.node, at - record.silent_s))
    _leave_round(run, member)
    run.reason = record.reason


def _leave_round(run: DurableRun, member: DurableMember) -> None:
    """Take a member out of the current round; release it if it was given its outcome while it was in the round."""
    member.assignment, member.succeeded = None, False
    if member.outcome is not None:
        _release(run, member)


def _round_formed(run: DurableRun, record: records.RoundFormed, at: float) -> None:
    members = [_member(run, record, ranks.node) for ranks in record.nodes]
    master, world_size = members[0], sum(ranks.workers for ranks in record.nodes)
    for member, ranks in zip(members, record.nodes, strict=True):
        member.has_taken_part = True
        member.assignment = Assignment(
            group_rank=ranks.group_rank,
            group_world_size=len(record.nodes),
            first_rank=ranks.first_rank,
            world_size=world_size,
            first_role_rank=ranks.first_role_rank,
            role_world_size=ranks.role_world_size,
            master_node=master.node,
            master_address=record.master_address,
            master_port=record.master_port,
            master_probe_port=master.offer.probe_port,
            restarts_used=run.restarts_used,
            max_restarts=run.spec.max_restarts,
        )
    run.order = {ranks.node: ranks for ranks in record.nodes}
    run.stop_timeout_s = max((member.offer.stop_timeout_s for member in members), default=0.0)
    run.formed_reason, run.resume = record.reason, record.resume
    run.spoiled, run.doubted, run.why_anew = record.spoiled, record.doubted, record.why_anew
    _begin_round(run, record, at)


def _begin_round(run: DurableRun, record: records.RoundFormed | records.RoundRemembered, at: float) -> None:
    """Begin a round, in which nothing has happened yet."""
    run.round, run.superseded_reason, run.losses, run.first_failure = record.round, "", [], None
    run.stepped = run.step_overdue = run.repeats_steps = run.silent = False
    run.formed_at, run.succeeded, run.divergence, run.exit_overdue = at, set(), None, ""
    run.lost = [loss for loss in run.lost if loss.round > record.round - LOST_ROUNDS]
    _enter(run, State.STARTING, record.reason, record.spent, at)


def _rounds_missed(run: DurableRun, record: records.RoundsMissed, _: float) -> None:
    run.round, run.superseded_reason = record.round, record.reason


def _round_started(run: DurableRun, record: records.RoundStarted, at: float) -> None:
    run.reports_steps = record.steps_awaited
    _enter(run, State.RUNNING, record.reason, record.spent, at)


def _activity_changed(run: DurableRun, record: records.ActivityRecord, at: float) -> None:
    """Record what begins or is over, and settle the time: from now on it goes to another activity."""
    match record:
        case records.TrainingBegan():
            run.reports_steps = run.stepped = True
            run.repeats_steps = record.step is not None and run.is_repeated(record.step)
            run.entered_at = at
        case records.FirstStepOverdue():
            run.step_overdue = True
        case records.TrainingCaughtUp():
            run.repeats_steps = False
        case records.NodesSilent():
            run.silent = True
        case records.NodesHeard():
            run.silent = False
    run.ledger = Ledger(at, record.spent, _SPECIAL.get(type(record), run.activity_at_work))


_SPECIAL: dict[type[records.Record], Activity] = {
    records.TrainingStalled: Activity.STALLED,
    records.NodesSilent: Activity.SILENT,
}
"""The activity that some records begin; the others begin the one that the round has while nothing is wrong."""


def _only_told(*_: object) -> None:
    """Change nothing: the record is only for people who read the history."""


def _exit_overdue(run: DurableRun, record: records.ExitOverdue, _: float) -> None:
    run.exit_overdue = record.reason


def _workers_unseen(run: DurableRun, *_: object) -> None:
    run.unseen_told = True


def _replicas_diverged(run: DurableRun, record: records.ReplicasDiverged, _: float) -> None:
    run.divergence = record
    if record.back_to is None:
        run.doubted = run.doubted or record.since
    else:
        spoiled = SpoiledStep(record.since, round=record.round + 1)  # the next round goes back, so its steps are good
        run.spoiled = with_spoiled(run.spoiled, spoiled, record.back_to)


def _round_stopped(run: DurableRun, record: records.RoundStopped, at: float) -> None:
    first = record.first_failure
    if first is not None:
        run.first_failure = WorkerFailure(first.node, first.host, at - first.failure.age_s, first.failure)
    run.stop_reason, run.planned = records.Reason(record.condition, record.reason), record.planned
    # The nodes could not get the step from memory, so it is spoiled, with all newer ones there. If it was on the disk,
    # steps in memory are still good, and nodes report by themselves which steps on the disk are damaged.
    if record.condition == conditions.unrestorable.__name__ and run.resume is not None and run.resume.disk is None:
        run.spoiled = with_spoiled(run.spoiled, SpoiledStep(run.resume.at, run.round, on_disk=False), None)
    _enter(run, State.STOPPING, record.reason, record.spent, at)


def _round_ended(run: DurableRun, record: records.RoundEnded, at: float) -> None:
    _set_report(run, record.report or record.excused, at)
    run.round, run.restarts_used, run.repeats = record.round, record.restarts_used, record.repeats
    run.charged_at, run.futile = record.charged_at, record.futile
    run.reached, run.succeeded = record.reached, set()
    run.last_end_reason = record.reason if record.report is None else cause_in_brief(record.report)
    for member in list(run.inside):
        _leave_round(run, member)
    _enter(run, State.FORMING, record.reason, record.spent, at)


def _run_ended(run: DurableRun, record: records.RunEnded, at: float) -> None:
    _set_report(run, record.report, at)
    run.outcome, run.last_step = record.outcome, record.step
    run.spoiled, run.doubted = record.spoiled, record.doubted
    run.concluded = record.condition in _FAILED_FOR_GOOD or record.outcome.result in _CONCLUSIONS
    _drop_rounds(run)
    _enter(run, _ENDS.get(record.outcome.result, State.FAILED), record.reason, record.spent, at)


def _drop_rounds(run: DurableRun) -> None:
    """Drop the rounds, and all that only another round would need.

    A thousand runs that have ended are kept, and each may have had fifty rounds. A restarted daemon reads only the last
    records of such a run, and that must lead to the same state.
    """
    run.members, run.released, run.order, run.losses, run.lost = {}, {}, {}, [], []
    run.last_left, run.emptied_at, run.succeeded, run.unseen_told = False, None, set(), False
    run.stepped = run.step_overdue = run.repeats_steps = run.silent = run.planned = False
    run.formed_reason = run.superseded_reason = run.last_end_reason = run.why_anew = ""
    run.stop_reason, run.first_failure, run.stop_timeout_s = records.Reason("", ""), None, 0.0
    run.stop_asked = run.exit_overdue = ""
    run.reports_steps, run.resume, run.divergence = False, None, None
    if not run.has_had_rounds:
        run.round = 0  # the run had no round: nodes remembered this number from an earlier run
    run.rounds = RoundHistory()


_FAILED_FOR_GOOD = {conditions.exhausted.__name__, conditions.torchrun_exhausted.__name__}
"""Conditions under which a run fails for good; under the others no node was left."""

_CONCLUSIONS = {Result.SUCCEEDED, Result.STOPPED}
"""Results with which the job itself is over. After a run that its nodes have left, the next node opens another."""

_ACTIVITIES = {State.FORMING: Activity.WAITING, State.STOPPING: Activity.STOPPING}
"""The activities of the states without workers at work; a run that has ended has none."""

_ENDS = {Result.SUCCEEDED: State.SUCCEEDED, Result.STOPPED: State.STOPPED, Result.LEFT: State.LEFT}


def _job_stop_asked(run: DurableRun, record: records.JobStopAsked, _: float) -> None:
    run.stop_asked = record.reason


def _enter(run: DurableRun, state: State, reason: str, spent: Spent, at: float) -> None:
    """Enter a state, and settle the time spent so far: from now on it goes to the state's activity, if it has one."""
    run.state, run.reason, run.entered_at = state, reason, at
    activity = run.activity_at_work if state.at_work else _ACTIVITIES.get(state)
    run.ledger = Ledger(at, spent, activity)


def _set_report(run: DurableRun, report: Report | None, at: float) -> None:
    """Remember why a round failed, until another round fails."""
    if report is not None:
        run.report, run.reported_at = report, at


_CHANGES = CompleteMap[type[records.Record], Callable[[DurableRun, Any, float], None]]("changes")
_CHANGES |= {
    records.NodeJoined: _node_joined,
    records.NodeLost: _node_lost,
    records.NodeReleased: _node_released,
    records.NodeSucceeded: _node_succeeded,
    records.NodeLeftBehind: _node_left_behind,
    records.RoundFormed: _round_formed,
    records.RoundRemembered: _begin_round,
    records.RoundsMissed: _rounds_missed,
    records.RoundStarted: _round_started,
    records.TrainingBegan: _activity_changed,
    records.FirstStepOverdue: _activity_changed,
    records.TrainingCaughtUp: _activity_changed,
    records.TrainingStalled: _activity_changed,
    records.TrainingResumed: _activity_changed,
    records.BusyWorkerAwaited: _only_told,
    records.ExitOverdue: _exit_overdue,
    records.WorkersUnseen: _workers_unseen,
    records.PreflightBegan: _only_told,
    records.PreflightEnded: _only_told,
    records.ReplicasDiverged: _replicas_diverged,
    records.NodesSilent: _activity_changed,
    records.NodesHeard: _activity_changed,
    records.RoundStopped: _round_stopped,
    records.RoundEnded: _round_ended,
    records.RunEnded: _run_ended,
    records.JobStopAsked: _job_stop_asked,
}
