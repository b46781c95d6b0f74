"""The life of a run as a table: from which state, under which condition, to which state, and why in words.

The first row whose condition holds is taken, and so on until none holds. The reason is the log line, the text in
`nodeclient status` and what the nodes are told; its placeholders are properties of `Words`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from coordinatord.core.queries import conditions
from coordinatord.core.queries.conditions import Condition
from coordinatord.core.queries.reasons import Words
from coordinatord.core.state.member import Standing
from coordinatord.core.state.run import Run, State
from coordinatord.core.transitions import actions
from coordinatord.core.transitions.decision import Outbox
from coordinatord.core.values.reason import Reason

TRANSITIONS_MAX = 16
"""No event can need more steps of one run than there are states; a longer chain is a loop in the table."""

Action = Callable[[Run, Reason, float, Outbox], None]


@dataclass(frozen=True, slots=True)
class Row:
    """One transition."""

    source: State
    when: Condition
    target: State
    action: Action
    reason: str


class TransitionLoopError(RuntimeError):
    """The table goes round in circles, which is a bug. State: the run is where the last row left it."""


def _rows() -> list[Row]:
    forming, starting, running = State.FORMING, State.STARTING, State.RUNNING
    stopping, succeeded, failed, stopped = State.STOPPING, State.SUCCEEDED, State.FAILED, State.STOPPED
    when, do = conditions, actions
    rows = [
        Row(state, when.replaced, failed, do.fail_abandoned, "all nodes are gone, a run with other settings follows")
        for state in (forming, starting, running)
    ]
    rows += [
        Row(forming, when.stop_asked, stopped, do.end_as_asked, "{words.stop_asked}"),
        Row(forming, when.all_left, stopped, do.end_as_left, "{words.because}the last node has left, as asked"),
        Row(
            forming,
            when.abandoned,
            failed,
            do.fail_abandoned,
            "{words.because}no node is left: all have gone, were lost or gave up",
        ),
        Row(forming, when.full, starting, do.form, "{words.because}formed of {words.chosen}, its maximum"),
        Row(forming, when.settled, starting, do.form, "{words.because}formed of {words.chosen}"),
        Row(starting, when.all_started, running, do.proceed, "all workers are started ({words.origin})"),
        Row(running, when.all_succeeded, succeeded, do.succeed, "all workers succeeded"),
    ]
    for state in (starting, running):
        rows += [
            Row(state, when.outrun, stopping, do.stop_at_once, "{words.missed}"),
            Row(state, when.worker_failed, stopping, do.stop_at_once, "{words.first_failure}"),
            Row(state, when.node_lost, stopping, do.stop_at_once, "lost {words.lost}"),
            Row(state, when.stop_asked, stopping, do.stop_planned, "{words.stop_asked}"),
            Row(state, when.node_leaving, stopping, do.stop_planned, "{words.leavers} will leave{words.drains}"),
            Row(state, when.restart_asked, stopping, do.stop_planned, "{words.restart_asked}"),
            Row(
                state,
                when.node_halted,
                stopping,
                do.stop_at_once,
                "{words.halted} had ended the workers, out of touch for too long",
            ),
            Row(state, when.outage, failed, do.fail_abandoned, "every node was silent for too long"),
            Row(state, when.arrived, stopping, do.stop_planned, "{words.ready} arrived"),
            Row(state, when.fell_silent, state, do.note_silent, "every node is silent"),
            Row(state, when.heard_again, state, do.note_heard, "nodes are heard again"),
        ]
    rows += [
        Row(running, when.stalled, running, do.stall, "{words.idle}"),
        Row(running, when.resumed, running, do.resume, "workers do steps again"),
        Row(stopping, when.exhausted, failed, do.fail_workers, "{words.verdict}"),
        Row(stopping, when.given_up, failed, do.fail_workers, "{words.verdict}"),
        Row(stopping, when.halted, forming, do.reform, "{words.verdict}"),
        Row(stopping, when.stop_overdue, stopping, do.leave_behind, "{words.slow} could not end the workers in time"),
    ]
    return rows


ROWS = _rows()

_BY_STATE = {state: [row for row in ROWS if row.source is state] for state in State}


def next_row(run: Run, now: float) -> tuple[Row | None, float | None]:
    """Return the row to take now, or None; and when it, or else the first one, is due if nothing happens before."""
    first = None
    for row in _BY_STATE[run.state]:
        due = row.when(run)
        if due is None:
            continue
        if due <= now:
            return row, due
        if first is None or due < first:
            first = due
    return None, first


def take_due_rows(run: Run, now: float, outbox: Outbox) -> float | None:
    """Take rows until none is due; return when the next one is, or None. Raises `TransitionLoopError`."""
    for _ in range(TRANSITIONS_MAX):
        _note_ready(run, now)
        row, due = next_row(run, now)
        if row is None:
            return due
        reason = Reason(conditions.NAMES[row.when], row.reason.format(words=Words(run)))
        row.action(run, reason, now, outbox)
    raise TransitionLoopError(f"job {run.job}: still moving after {TRANSITIONS_MAX} steps")


def _note_ready(run: Run, now: float) -> None:
    """Take note of since when there have been enough ready nodes for a round."""
    if run.count(Standing.READY) < run.spec.nodes_min:
        run.ledger.enough_since = None
    elif run.ledger.enough_since is None:
        run.ledger.enough_since = now
