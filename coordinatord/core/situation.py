"""Says to users in which state a run is, and in words why: for the status, and for answers to operators."""

from __future__ import annotations

from coordinatord.core.rounds.queries.conditions import exit_awaited, outage
from coordinatord.core.rounds.queries.reasons import Reasons
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import UNHEARD
from coordinatord.core.rounds.state.run import Health, Run, StragglingWorker
from coordinatord.core.rounds.values.time_ledger import Activity
from coordinatord.protocol.text import ago, lasted


def situation(run: Run, now: float) -> str:
    """Return why the run is in its present state, as of now."""
    reasons = Reasons(run)
    if run.durable.state in {State.FORMING, State.STOPPING}:
        until = run.keeping.waits.disk_until
        limit = "" if until is None else f" (for at most {lasted(max(0.0, until - now))})"
        return reasons.waiting_for + limit
    if run.health is Health.SILENT:
        return _silence(run, now)
    exit_overdue_at = exit_awaited(run)
    if run.durable.state is State.RUNNING and exit_overdue_at is not None and exit_overdue_at <= now:
        return reasons.with_notices(reasons.without_exit(now - run.exits.last_at))
    section = _section(run)
    if run.health is Health.STALLED:
        return section + reasons.idle
    if run.durable.step_overdue and not run.durable.stepped:
        return reasons.with_notices(reasons.without_step(now - run.durable.entered_at))
    no_step = "no step yet; " if awaits_first_step(run) else ""
    behind = "" if section else _straggling(run, now)  # in a section, workers need do no steps
    return reasons.with_notices(no_step + section + run.durable.reason + behind)


def shown_state(run: Run) -> State:
    """Return the state as it is shown: a round counts as starting until its workers have done a step.

    A job that an operator ends is stopping until it has ended, also while it only waits for the disk.
    """
    if run.durable.state is State.FORMING and run.durable.stop_asked:
        return State.STOPPING
    return State.STARTING if awaits_first_step(run) else run.durable.state


def awaits_first_step(run: Run) -> bool:
    """Whether all workers of the round run, and are to report steps, of which none is known yet."""
    return run.durable.state is State.RUNNING and run.activity is Activity.STARTING


def straggler_without_steps(run: Run, now: float) -> StragglingWorker | None:
    """Return the straggler if it has done no step for longer than the patience, while others did several; else None."""
    worker = run.straggler
    stands = worker is not None and worker.lag > 1 and now - worker.stepped_at >= run.progress.patience_s
    return worker if stands else None


def _straggling(run: Run, now: float) -> str:
    """Say that one worker does no steps while others do, as the end of a sentence; empty if that is not so."""
    worker = straggler_without_steps(run, now) if run.durable.state is State.RUNNING else None
    if worker is None:
        return ""
    stands = f"rank {worker.rank} on node {worker.node} has done no step for {lasted(now - worker.stepped_at)}"
    why = "others may skip collectives that it waits for, see nodeclient stacks"
    return f"; {stands}, and is {worker.lag:,} behind: {why}"


def _section(run: Run) -> str:
    """Return the section of the script that workers are in, as the beginning of a sentence; empty without one."""
    named = run.progress.sections.longest
    if named is None or run.durable.state is not State.RUNNING:
        return ""
    return f"in section {named.section.name}, at most {lasted(named.section.limit_s)}; "


def _silence(run: Run, now: float) -> str:
    """Say what may have silenced all nodes of the round, when workers stop, and when the job is given up."""
    ends_at = outage(run)
    end = "" if ends_at is None else f"; the job is given up in {lasted(max(0.0, ends_at - now))}"
    if all(member.observed == UNHEARD for member in run.roll.inside):
        since = f"not heard since this coordinator was started {ago(now - run.roll.heard_at)} ago"
        return f"{since}: they may have ended meanwhile{end}"
    last_heard_at = max(member.lived_at for member in run.roll.inside)
    stop_in_s = last_heard_at + run.policy.outage_grace_s - now
    workers = f"workers stop in {lasted(stop_in_s)}" if stop_in_s > 0 else "their workers have stopped"
    return f"{Reasons(run).silence}; {workers}{end}"
