"""The table of this wing's own actions: it has steps written to the disk, and names the step to halt after.

Each row has a condition and an action, for a state of the run. In each of these states, the table of all transitions
(`core/rounds/transitions/table`) has one row that calls this wing, which then executes the first row here whose
condition holds. No action is recorded: the files show which steps are on the disk, and nodes report again after which
steps their workers have promised to halt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from coordinatord.core.keeping import write_plan
from coordinatord.core.keeping.known import KeptState
from coordinatord.core.keeping.write_progress import STUCK_S
from coordinatord.core.rounds.queries.conditions import before_first_timeout
from coordinatord.core.rounds.queries.past_round import is_ending, is_last
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import Member
from coordinatord.core.rounds.values.due_times import NOW

Condition = Callable[[KeptState], float | None]
"""Returns the time from which it holds, or None if it does not, like the conditions of the transitions."""

Action = Callable[[KeptState, float], Iterable[Member]]
"""Is given the time, and returns the nodes that may have to be sent something."""


# Conditions


def write_due(kept: KeptState) -> float | None:
    """The newest whole step is to be written to the disk: after the interval, or at once (`Persisting.wanted`).

    This is asked while a round runs, and by `RunKeeping.end_round`. Between two rounds `last_step_due` decides.
    """
    disk, at = kept.disk, write_plan.may_write_at(kept)
    if at is None or disk.wanted:
        return at
    return None if disk.every_s is None or disk.since is None else max(at, disk.since + disk.every_s)


def last_step_due(kept: KeptState) -> float | None:
    """Nodes outside a round keep a newer step than the disk has, and may leave.

    If the run ends, the step is written as soon as a write may begin. Between two rounds it is written when no round
    has followed for `WAITS_S`, or earlier if a node's `--join-timeout` expires. That node then leaves after the write,
    see `RunKeeping.wait_at_timeout`.

    A write may have to wait longer, for one of two reasons:

    * After a failed attempt there is a pause, since the disk would most likely fail again. A node whose timeout expires
      waits for its end, too.
    * After a restart of the coordinator, nodes first scan the disk (`FIRST_SCAN_S`). A node whose timeout expires does
      not wait for that: at worst a step is written twice.
    """
    at, run = write_plan.may_write_at(kept), kept.run  # `at` is the end of such a pause or scan, or in the past
    if at is None or is_ending(run):
        return at
    if run.durable.state is not State.FORMING:
        return None
    waits_until = run.durable.entered_at + write_plan.WAITS_S
    if kept.disk.problem:  # the last attempt has failed: a join timeout does not shorten the pause
        return max(at, before_first_timeout(run, waits_until))
    return before_first_timeout(run, max(at, waits_until))  # it shortens the wait for a scan


def write_done(kept: KeptState) -> float | None:
    """All parts of a step are on the disk, so that one node can make it whole."""
    attempt = kept.disk.attempt if _may_go_on(kept) else None
    return NOW if attempt is not None and attempt.written and not attempt.is_committing else None


def write_over(kept: KeptState) -> float | None:
    """An attempt is over: the step is whole, a node has failed or is gone, or none has written a byte for too long."""
    attempt = kept.disk.attempt if _may_go_on(kept) else None
    if attempt is None:
        return None
    is_over = attempt.committed or attempt.failed_nodes or write_plan.gone_writers(kept, attempt)
    return NOW if is_over else attempt.progressed_at + STUCK_S


def all_promised(kept: KeptState) -> float | None:
    """Every node of a round that is being stopped has reported after which step its workers have promised to halt."""
    return None if kept.halting.furthest_promised(kept.run) is None else NOW


def _may_go_on(kept: KeptState) -> bool:
    """Whether the next stage of an attempt may begin: not while workers end.

    What follows depends on whether nodes leave. That is known only when all workers have ended, and then
    `RunKeeping.end_round` ends an attempt that is over. After the last round it is known, since all nodes leave.
    """
    return kept.run.durable.state is not State.STOPPING or is_last(kept.run)


# Actions


def begin_write(kept: KeptState, now: float) -> Iterable[Member]:
    """Order nodes to write the newest whole step to the disk; if they cannot, record why and when to try again."""
    attempt = write_plan.new_attempt(kept, now)
    if attempt is None:
        step, why = write_plan.step_to_write(kept), write_plan.why_none(kept)
        kept.disk.fail(why, now, step, write_plan.pause_s(kept))
        return ()
    kept.disk.begin(attempt)
    return kept.run.members.values()


def commit_write(kept: KeptState, _: float) -> Iterable[Member]:
    """Have the committer make the step whole, as all parts are written; workers may overwrite it in memory now."""
    attempt = kept.disk.attempt
    assert attempt is not None  # noqa: S101 - it is the row's condition
    attempt.is_committing = True
    return [kept.run.members[attempt.committer]]


def end_write(kept: KeptState, now: float) -> Iterable[Member]:
    """Record that a step is whole, or why not; if nodes are about to leave, begin again at once without failed ones."""
    attempt = kept.disk.attempt
    assert attempt is not None  # noqa: S101 - it is the row's condition
    why = write_plan.why_failed(kept, attempt)
    if not why:
        kept.disk.succeed(now)
    else:
        kept.disk.fail(why, now, attempt.at, write_plan.pause_s(kept, attempt))
        instead = write_plan.attempt_instead(kept, attempt, now)
        if instead is not None:
            kept.disk.begin(instead)
    return kept.run.members.values()


def name_step(kept: KeptState, _: float) -> Iterable[Member]:
    """Send all nodes the step after which workers halt: the furthest one that a worker has promised."""
    kept.halting.step = kept.halting.furthest_promised(kept.run)
    return kept.run.members.values()


ROWS: dict[State, tuple[tuple[Condition, Action], ...]] = {
    State.FORMING: ((last_step_due, begin_write), (write_over, end_write), (write_done, commit_write)),
    # STARTING has no rows: it takes a moment, and the attempt goes on in RUNNING.
    State.RUNNING: ((write_over, end_write), (write_done, commit_write), (write_due, begin_write)),
    # A job that has succeeded, or failed for good, stays in this state until the disk has its last step.
    State.STOPPING: (
        (write_over, end_write),
        (write_done, commit_write),
        (all_promised, name_step),
        (last_step_due, begin_write),
    ),
}
"""The rows of each state of the run, in the order in which they are checked. An attempt that is over is ended, even if
all parts are written: a writer may be gone. A new attempt is due only while there is none, so the place of its row
makes no difference."""
