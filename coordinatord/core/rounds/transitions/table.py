"""The life of a run as a table: from which state, under which condition, to which state, and for which reason.

The first row whose condition holds is taken, and so on until none holds. The reason goes to the log, to `nodeclient
status` and to the nodes; its placeholders are values of the run, and texts of `Reasons`.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from coordinatord.core.rounds.queries import conditions
from coordinatord.core.rounds.queries.conditions import Condition
from coordinatord.core.rounds.queries.reasons import Reasons
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.transitions import actions
from coordinatord.core.rounds.transitions.decision import Decision
from coordinatord.core.rounds.values.records import Reason
from coordinatord.protocol.errors import InternalError

TRANSITIONS_MAX = 16
"""The most steps that one event can cause in one run: a longer chain than there are states is a loop in the table."""

Action = Callable[[Run, Reason, Decision], None]


class Transition(Struct, frozen=True):
    """One transition."""

    source: State
    when: Condition
    target: State
    action: Action
    reason: str


class TransitionLoopError(InternalError):
    """The table goes round in circles. The run is where the last row left it."""


_LEFT = "{reasons.because}the last node has left, as asked"
_FORMED = "{reasons.because}formed of {reasons.chosen}"


def _rows() -> list[Transition]:
    forming, starting, running, stopping = State.FORMING, State.STARTING, State.RUNNING, State.STOPPING
    succeeded, failed, stopped, left = State.SUCCEEDED, State.FAILED, State.STOPPED, State.LEFT
    when, do = conditions, actions
    rows = [
        Transition(
            state, when.replaced, failed, do.fail_abandoned, "all nodes are gone, a run with other settings follows"
        )
        for state in (forming, starting, running)
    ]
    rows += [
        Transition(forming, when.keeping_due_first, forming, do.keep, "what nodes keep comes before they are let go"),
        Transition(forming, when.stop_asked, stopped, do.end_as_asked, "{run.durable.stop_asked}{reasons.last_step}"),
        Transition(forming, when.all_left, left, do.end_as_left, f"{_LEFT}{{reasons.last_step}}"),
        Transition(
            forming,
            when.abandoned,
            failed,
            do.fail_abandoned,
            "{reasons.because}no node is left: all have gone, were lost or gave up",
        ),
        Transition(forming, when.full, starting, do.form, f"{_FORMED}, all that --nnodes allows{{reasons.resumes}}"),
        Transition(forming, when.settled, starting, do.form, f"{_FORMED}{{reasons.resumes}}"),
        Transition(starting, when.all_started, running, do.proceed, "all workers are started{reasons.starts}"),
        Transition(running, when.all_succeeded, succeeded, do.succeed, "all workers succeeded"),
    ]
    for state in (starting, running):
        rows += [
            Transition(state, when.outrun, stopping, do.stop_at_once, "{run.durable.superseded_reason}"),
            Transition(state, when.worker_failed, stopping, do.stop_at_once, "{run.evidence.first}"),
            Transition(state, when.node_lost, stopping, do.stop_at_once, "lost {reasons.lost}"),
            Transition(state, when.unrestorable, stopping, do.stop_at_once, "{reasons.unrestorable}"),
            Transition(state, when.stop_asked, stopping, do.stop_planned, "{run.durable.stop_asked}"),
            Transition(state, when.node_leaving, stopping, do.stop_planned, "{reasons.leave_asked}{reasons.drains}"),
            Transition(state, when.restart_asked, stopping, do.stop_planned, "{run.restart_asked}"),
            Transition(
                state,
                when.node_stopped,
                stopping,
                do.stop_at_once,
                "{reasons.stopped} had ended the workers, out of touch for too long",
            ),
            Transition(state, when.outage, failed, do.fail_abandoned, "every node was silent for too long"),
            Transition(state, when.arrived, stopping, do.stop_planned, "{reasons.ready} arrived"),
            Transition(state, when.fell_silent, state, do.record_silent, "every node is silent"),
            Transition(state, when.heard_again, state, do.record_heard, "nodes are heard again"),
        ]
    rows += [
        Transition(state, when.given, state, do.let_go, "others have what nodes that leave have kept")
        for state in (forming, starting, running)
    ]
    rows += [
        Transition(state, when.keeping_due, state, do.keep, "what nodes keep is looked after")
        for state in (forming, running, stopping)  # that waits while workers start, which takes a moment
    ]
    rows += [
        Transition(running, when.caught_up, running, do.catch_up, "step {run.durable.reached} is reached again"),
        Transition(running, when.first_step_overdue, running, do.record_overdue, "{reasons.overdue}"),
        *_stall_rows(),
        # All workers succeeded before their nodes received the stop: another round would repeat what is done.
        Transition(stopping, when.all_succeeded, succeeded, do.succeed, "all workers succeeded"),
        Transition(stopping, when.corroborated, stopping, do.lose_corroborated, "{reasons.corroborated}"),
        Transition(stopping, when.exhausted, failed, do.fail_workers, "{reasons.verdict}"),
        Transition(stopping, when.given_up, failed, do.fail_workers, "{reasons.verdict}"),
        Transition(stopping, when.all_stopped, forming, do.reform, "{reasons.verdict}"),
        Transition(
            stopping, when.stop_overdue, stopping, do.leave_behind, "{reasons.slow} could not end the workers in time"
        ),
    ]
    return rows


def _stall_rows() -> list[Transition]:
    """Return what is done while workers do no step."""
    running, stopping, when, do = State.RUNNING, State.STOPPING, conditions, actions
    return [
        Transition(running, when.stalled, running, do.stall, "{reasons.idle}"),
        Transition(running, when.resumed, running, do.end_stall, "workers do steps again"),
        Transition(running, when.hung, stopping, do.stop_hung, "{reasons.hung}"),
        Transition(running, when.busy_awaited, running, do.record_busy, "{reasons.awaited}"),
        Transition(running, when.look_due, running, do.look, "it is time to look where the workers stand"),
    ]


ROWS = _rows()

_BY_STATE = {state: [row for row in ROWS if row.source is state] for state in State}


def next_row(run: Run, now: float) -> tuple[Transition | None, float | None]:
    """Return the row to take now, and since when it is due.

    If there is none, return None, and the time at which the first row is due if nothing happens.
    """
    first = None
    for row in _BY_STATE[run.durable.state]:
        due = row.when(run)
        if due is None:
            continue
        if due <= now:
            return row, due
        if first is None or due < first:
            first = due
    return None, first


def take_due_rows(run: Run, decision: Decision) -> float | None:
    """Take rows until none is due; return when the next one is, or None. Raises `TransitionLoopError`."""
    taken: list[str] = []
    while len(taken) < TRANSITIONS_MAX:
        run.gathering.count_ready(decision.now)
        run.gathering.join_timeouts.settle()
        run.keeping.record_ending(decision.now)
        row, due = next_row(run, decision.now)
        if row is None:
            return due
        taken.append(f"{row.source} to {row.target} ({row.when.__name__})")
        reason = Reason(row.when.__name__, row.reason.format(run=run, reasons=Reasons(run)))
        row.action(run, reason, decision)
    text = f"job {run.job}: still moving after {TRANSITIONS_MAX} steps"
    raise TransitionLoopError(text, table="transitions", state=run.durable.state, stimulus=", ".join(taken))
