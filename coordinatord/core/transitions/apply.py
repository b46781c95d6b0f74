"""What each record changes: the one place where the durable state of a run changes, in life and in replay.

The daemon that decides applies the records of its decision, and the daemon that starts again applies the same records,
so what the store holds, replayed, is the state in memory. What only one life of the daemon knows (sessions, leases,
what nodes last said) is not in here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coordinatord.core.policy import Policy
from coordinatord.core.queries.report_builder import in_brief
from coordinatord.core.state.cluster import Cluster
from coordinatord.core.state.member import Member
from coordinatord.core.state.run import Run, State
from coordinatord.core.values.records import (
    JobForgotten,
    JobStopAsked,
    NodeDrained,
    NodeJoined,
    NodeLeftBehind,
    NodeLost,
    NodeReleased,
    NodesHeard,
    NodesSilent,
    NodeSucceeded,
    NodeUndrained,
    Reason,
    Record,
    RoundEnded,
    RoundFormed,
    RoundRemembered,
    RoundsMissed,
    RoundStarted,
    RoundStopped,
    RunEnded,
    RunOpened,
    TrainingBegan,
    TrainingResumed,
    TrainingStalled,
)
from coordinatord.core.values.root_cause import LostNode, WorkerFailure
from coordinatord.core.values.time_ledger import Activity
from coordinatord.protocol.errors import InternalError, Table
from coordinatord.protocol.messages import Assignment, Result


class HistoryError(InternalError):
    """A record does not follow from those before it. State: as before it.

    Whoever read the records from a file says instead that it was not this program that wrote them.
    """


def apply(cluster: Cluster, record: Record, at: float, policy: Policy) -> None:
    """Let a record of time `at`, in the coordinator's clock, take effect. Raises `HistoryError`."""
    jobs = cluster.jobs
    match record:
        case NodeDrained():
            cluster.drained[record.node] = record.reason
            return
        case NodeUndrained():
            cluster.drained.pop(record.node, None)
            return
        case RunOpened():
            jobs.pop(record.job, None)  # the newest job is the last one
            jobs[record.job] = Run(record.job, record.run, record.spec, record.opener, policy, at)
            return
        case JobForgotten():
            cluster.forget(record.run, record.reason)
            if record.job in jobs and jobs[record.job].id == record.run:
                del jobs[record.job]
            return
    run = jobs.get(record.job)
    if run is None or run.id != record.run:
        text = f"run {record.run} of job {record.job} is not the one that is on"
        raise HistoryError(text, table="changes", state=None if run is None else run.id, stimulus=record)
    try:
        _CHANGES[type(record)](run, record, at)
    except KeyError as error:
        text = f"run {record.run} of job {record.job} knows no node {error}"
        raise HistoryError(text, table="changes", state=run.state, stimulus=record) from error


def _node_joined(run: Run, record: NodeJoined, at: float) -> None:
    released = run.members.get(record.node)
    if released is not None:  # its goodbye has been recorded, its departure is not worth a record
        run.remove(released)
    run.add(
        Member(
            node=record.node,
            incarnation=record.incarnation,
            offer=record.offer,
            peer_address=record.peer_address,
            local_address=record.local_address,
            heard_at=at,
            awaited_from=at,
            arrived_at=at,
        )
    )
    run.emptied_at = None
    if not run.order:
        # One whose records are lost goes on counting where the nodes remember to have been.
        run.round = max(run.round, record.round)


def _node_lost(run: Run, record: NodeLost, at: float) -> None:
    member = run.members[record.node]
    if member.in_round and not member.succeeded:
        run.losses.append(LostNode(member.node, at - record.silent_s))
    run.remove(member)
    run.last_left = record.leaving
    if not run.counted:
        run.emptied_at = None if record.leaving else at


def _node_released(run: Run, record: NodeReleased, at: float) -> None:
    del at
    member = run.members[record.node]
    member.outcome = record.outcome
    run.last_left = record.outcome.result is Result.LEFT
    run.give_up.discard(member.node)
    run.leaving.discard(member.node)
    run.place(member)
    if not run.counted:
        run.emptied_at = None


def _node_succeeded(run: Run, record: NodeSucceeded, at: float) -> None:
    del at
    member = run.members[record.node]
    member.succeeded = True
    run.place(member)


def _node_left_behind(run: Run, record: NodeLeftBehind, at: float) -> None:
    member = run.members[record.node]
    run.losses.append(LostNode(member.node, at - record.silent_s))
    run.release(member)
    run.reason = record.reason


def _round_formed(run: Run, record: RoundFormed, at: float) -> None:
    members = [run.members[ranks.node] for ranks in record.nodes]
    world_size = sum(ranks.workers for ranks in record.nodes)
    master = members[0]
    run.begin_round(
        record.round,
        {
            ranks.node: Assignment(
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
            for ranks in record.nodes
        },
        members,
    )
    run.origin = record.reason
    run.timeline.form(record.round, len(record.nodes), world_size, record.reason, record.spent)
    run.ledger.settle(record.spent, Activity.STARTING, at)
    run.enter(State.STARTING, record.reason, at)


def _round_remembered(run: Run, record: RoundRemembered, at: float) -> None:
    run.round = record.round
    run.timeline.form(record.round, record.nodes, record.workers, record.reason, record.spent)
    run.ledger.settle(record.spent, Activity.STARTING, at)
    run.enter(State.STARTING, record.reason, at)


def _rounds_missed(run: Run, record: RoundsMissed, at: float) -> None:
    del at
    run.round, run.missed = record.round, record.reason
    for member in run.inside:
        run.place(member)


def _round_started(run: Run, record: RoundStarted, at: float) -> None:
    run.ledger.reports_steps = record.steps_awaited
    run.timeline.start(record)
    run.ledger.settle(record.spent, Activity.STARTING if record.steps_awaited else Activity.RUNNING, at)
    run.enter(State.RUNNING, record.reason, at)


def _training_began(run: Run, record: TrainingBegan, at: float) -> None:
    run.ledger.reports_steps = run.ledger.stepped = True
    run.ledger.settle(record.spent, Activity.TRAINING, at)


def _training_stalled(run: Run, record: TrainingStalled, at: float) -> None:
    run.ledger.settle(record.spent, Activity.STALLED, at)


def _training_resumed(run: Run, record: TrainingResumed, at: float) -> None:
    run.ledger.settle(record.spent, Activity.TRAINING, at)


def _nodes_silent(run: Run, record: NodesSilent, at: float) -> None:
    del record, at
    run.ledger.silent = True


def _nodes_heard(run: Run, record: NodesHeard, at: float) -> None:
    del record, at
    run.ledger.silent = False


def _round_stopped(run: Run, record: RoundStopped, at: float) -> None:
    first = record.first_failure
    if first is not None:
        failure = WorkerFailure(first.node, first.host, at - first.failure.age_s, first.failure)
        run.failures.setdefault(first.node, failure)
    run.trigger = Reason(record.condition, record.reason)
    run.planned_at = at if record.planned else None
    slowest = max((member.offer.stop_timeout_s for member in run.inside), default=0)
    run.stop_overdue_at = at + slowest + run.policy.stop_limit_s
    run.timeline.stop(record)
    run.ledger.settle(record.spent, Activity.STOPPING, at)
    run.enter(State.STOPPING, record.reason, at)


def _round_ended(run: Run, record: RoundEnded, at: float) -> None:
    run.keep(record.report, at)
    run.round, run.restarts_used = record.round, record.restarts_used
    run.repeats = record.repeats
    run.cause = record.reason if record.report is None else in_brief(record.report)
    for member in list(run.inside):
        run.release(member)
    run.timeline.end(record)
    run.ledger.settle(record.spent, Activity.WAITING, at)
    run.enter(State.FORMING, record.reason, at)


def _run_ended(run: Run, record: RunEnded, at: float) -> None:
    run.keep(record.report, at)
    run.outcome = record.outcome
    run.concluded = record.condition in _FAILED_FOR_GOOD or (
        record.outcome.result in _ENDS and record.condition not in _EMPTIED
    )
    run.give_up.clear()
    if record.step is not None:
        run.progress.gone = record.step
    run.timeline.end_all(record)
    run.ledger.stepped = run.ledger.silent = False  # there is no current round, nor need its records be kept
    run.ledger.settle(record.spent, None, at)
    run.enter(_ENDS.get(record.outcome.result, State.FAILED), record.reason, at)


_FAILED_FOR_GOOD = {"exhausted", "given_up"}
"""Conditions of the table; the others are that no node was left."""

_EMPTIED = {"all_left"}
"""Conditions of a run that is stopped since its nodes left: one that was on its way opens another, as after a loss."""

_ENDS = {Result.SUCCEEDED: State.SUCCEEDED, Result.STOPPED: State.STOPPED}


def _job_stop_asked(run: Run, record: JobStopAsked, at: float) -> None:
    del at
    run.stop_asked = record.reason


_CHANGES = Table[type[Record], Callable[[Run, Any, float], None]]("changes")
_CHANGES |= {
    NodeJoined: _node_joined,
    NodeLost: _node_lost,
    NodeReleased: _node_released,
    NodeSucceeded: _node_succeeded,
    NodeLeftBehind: _node_left_behind,
    RoundFormed: _round_formed,
    RoundRemembered: _round_remembered,
    RoundsMissed: _rounds_missed,
    RoundStarted: _round_started,
    TrainingBegan: _training_began,
    TrainingStalled: _training_stalled,
    TrainingResumed: _training_resumed,
    NodesSilent: _nodes_silent,
    NodesHeard: _nodes_heard,
    RoundStopped: _round_stopped,
    RoundEnded: _round_ended,
    RunEnded: _run_ended,
    JobStopAsked: _job_stop_asked,
}
