"""The life of a run as a table: from which state, under which condition, to which state, and for which reason.

After each event, the first row of the run's state whose condition holds is taken, again and again, until none holds.
So the order of the rows decides where two hold at once. The action of a row makes its records, which change the state.
The reason goes to the log, to `nodeclient status` and to the nodes.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from coordinatord.core.rounds.queries import conditions as when
from coordinatord.core.rounds.queries.conditions import Condition
from coordinatord.core.rounds.queries.reasons import Reasons
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.transitions import actions as do
from coordinatord.core.rounds.transitions import releases
from coordinatord.core.rounds.transitions.decision import Decision
from coordinatord.core.rounds.values.due_times import NOW
from coordinatord.core.rounds.values.records import Reason
from coordinatord.core.rounds.values.root_cause import CUT_OFF
from coordinatord.protocol.errors import InternalError

TRANSITIONS_MAX = 16
"""The most rows that one event can take in one run, twice as many as there are states: a longer chain is a loop."""

Action = Callable[[Run, Reason, Decision], None]


class Transition(Struct, frozen=True):
    """One row of the table, for one state."""

    source: State
    when: Condition
    target: State
    """The state that follows, by the records of the action; often the same."""
    action: Action
    reason: str
    """A template, empty if the action records no reason. Its placeholders are values of the run or of `Reasons`."""


class TransitionLoopError(InternalError):
    """The rows of the table follow each other without end. The run is where the last row left it."""


FORMING, STARTING, RUNNING, STOPPING, SUCCEEDED, FAILED, STOPPED, LEFT = State

_LEFT = "{reasons.because}the last node has left, as asked"
_ABANDONED = "{reasons.because}no node is left: all have gone, were lost or gave up"
_SUCCEEDED = "all workers succeeded{run.keeping.unstepped}{reasons.last_step}"
_REPLACED = "all nodes are gone, a run with other settings follows"
_CUT_OFF = f"{{reasons.stopped}} {CUT_OFF}"

_AT_WORK = tuple(state for state in State if state.at_work)

# The states of a row, its condition, the next state (None: the same one), the action, and the reason (empty if the
# action records none)
_TABLE: list[tuple[tuple[State, ...], Condition, State | None, Action, str]] = [
    ((FORMING, *_AT_WORK), when.replaced, FAILED, do.end_as_abandoned, _REPLACED),
    # There is no round. The keeping wing acts first: kept state is handed over before nodes are released. The judging
    # wing has suspect nodes tested before a round is formed.
    ((FORMING,), when.keeping_due, None, do.advance_keeping, ""),
    ((FORMING,), when.stop_asked, STOPPED, do.end_as_asked, "{reasons.stop_asked}{reasons.last_step}"),
    ((FORMING,), when.all_left, LEFT, do.end_as_left, f"{_LEFT}{{reasons.last_step}}"),
    ((FORMING,), when.abandoned, FAILED, do.end_as_abandoned, _ABANDONED),
    ((FORMING,), when.judging_due, None, do.advance_judging, ""),
    ((FORMING,), when.settled, STARTING, do.form_round, "{reasons.because}formed of {reasons.chosen}{reasons.resumes}"),
    ((FORMING,), when.short_of_nodes, None, do.enlist_quarantined, ""),
    # A round at work
    ((STARTING,), when.all_started, RUNNING, do.record_started, "all workers are started{reasons.starts}"),
    ((RUNNING,), when.all_succeeded, SUCCEEDED, do.end_as_succeeded, _SUCCEEDED),
    ((RUNNING,), when.success_unwritten, STOPPING, do.stop_succeeded, "all workers succeeded"),
    # Whatever ends the round, the next one does not resume from a step that is known to be wrong.
    ((RUNNING,), when.divergence_found, None, do.record_divergence, ""),
    (_AT_WORK, when.outrun, STOPPING, do.stop_at_once, "{run.durable.superseded_reason}"),
    # A hang is checked before failures, since workers fail that have waited for the one that hangs.
    ((RUNNING,), when.hung, STOPPING, do.stop_hung, "{run.watching.hang.failure.message}{run.watching.hung_before}"),
    (_AT_WORK, when.worker_failed, STOPPING, do.stop_at_once, "{run.evidence.first}"),
    (_AT_WORK, when.node_lost, STOPPING, do.stop_at_once, "lost {reasons.lost}"),
    (_AT_WORK, when.unrestorable, STOPPING, do.stop_at_once, "{run.keeping.restore_problem}"),
    (_AT_WORK, when.stop_asked, STOPPING, do.stop_planned, "{run.durable.stop_asked}"),
    (_AT_WORK, when.node_leaving, STOPPING, do.stop_planned, "{reasons.leave_asked}"),
    (_AT_WORK, when.restart_asked, STOPPING, do.stop_planned, "{run.restart_asked}"),
    (_AT_WORK, when.node_stopped, STOPPING, do.stop_at_once, _CUT_OFF),
    (_AT_WORK, when.outage, FAILED, do.end_as_abandoned, "every node was silent for too long"),
    (_AT_WORK, when.arrived, STOPPING, do.stop_planned, "{reasons.ready} arrived"),
    (_AT_WORK, when.fell_silent, None, do.record_activity, "{reasons.silence}"),
    (_AT_WORK, when.heard_again, None, do.record_activity, "nodes are heard again"),
    # Nodes that hand over
    ((FORMING, *_AT_WORK), when.handed_over, None, releases.release_handed_over, ""),
    # The keeping wing waits while workers start, which takes a moment.
    ((RUNNING, STOPPING), when.keeping_due, None, do.advance_keeping, ""),
    ((STARTING, RUNNING, STOPPING), when.judging_due, None, do.advance_judging, ""),
    # Steps
    ((RUNNING,), when.caught_up, None, do.record_activity, "step {run.durable.reached} is reached again"),
    ((RUNNING,), when.first_step_overdue, None, do.record_activity, "{reasons.overdue}"),
    ((RUNNING,), when.stalled, None, do.record_activity, "{reasons.idle}"),
    ((RUNNING,), when.resumed, None, do.record_activity, "workers do steps again"),
    ((RUNNING,), when.exit_overdue, None, do.record_exit_overdue, "{reasons.exit_overdue}"),
    ((RUNNING,), when.diverged, STOPPING, do.stop_diverged, "{run.durable.divergence.reason}"),
    ((RUNNING, STOPPING), when.watching_due, None, do.advance_watching, ""),
    # A round that ends. If all workers succeeded before the stop reached them, another round would repeat their work.
    ((STOPPING,), when.all_succeeded, SUCCEEDED, do.end_as_succeeded, _SUCCEEDED),
    ((STOPPING,), when.corroborated, None, do.lose_corroborated, "{reasons.corroborated}"),
    ((STOPPING,), when.exhausted, FAILED, do.end_as_failed, "{reasons.verdict}"),
    ((STOPPING,), when.torchrun_exhausted, FAILED, do.end_as_failed, "{reasons.verdict}"),
    ((STOPPING,), when.all_stopped, FORMING, do.end_round, "{reasons.verdict}"),
    ((STOPPING,), when.stop_overdue, None, do.leave_behind, "{reasons.slow} could not end the workers in time"),
]

ROWS = [
    Transition(source, condition, target or source, action, reason)
    for sources, condition, target, action, reason in _TABLE
    for source in sources
]
"""The table with a row for each state."""

_BY_STATE = {state: [row for row in ROWS if row.source is state] for state in State}


def next_row(run: Run, now: float) -> tuple[Transition | None, float | None]:
    """Return the row to take now, and since when it is due; or None, and when the first row is due, if any."""
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


def first_due(run: Run) -> float | None:
    """Return when the first row is due, if any; none is taken."""
    return next_row(run, NOW)[1]  # by this clock, only rows that are due now are past


def take_due_rows(run: Run, decision: Decision) -> float | None:
    """Take rows until none is due; return when the next one is, or None. Raises `TransitionLoopError`."""
    taken: list[str] = []
    while len(taken) < TRANSITIONS_MAX:
        run.gathering.record_counts(decision.now)
        run.keeping.before_table(decision.now)
        row, due = next_row(run, decision.now)
        if row is None:
            return due
        taken.append(f"{row.source} to {row.target} ({row.when.__name__})")
        reason = Reason(row.when.__name__, row.reason.format(run=run, reasons=Reasons(run)))
        row.action(run, reason, decision)
    text = f"job {run.job}: still moving after {TRANSITIONS_MAX} steps"
    raise TransitionLoopError(text, where="transitions", state=run.durable.state, stimulus=", ".join(taken))
