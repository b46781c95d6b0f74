"""Divides the open time of a run, which no record has settled yet, between activities.

The ledger of a run (`values/time_ledger`) counts each second for an activity, such as training or starting. A change
becomes known only after it has happened: a worker fails, and its node reports that a moment later. So each function
here finds the turn between two activities, and returns the time spent up to now. The result goes into the next record,
because a restarted daemon could not work it out again.
"""

from __future__ import annotations

from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import MemberState
from coordinatord.core.rounds.state.run import Health, Run
from coordinatord.core.rounds.values.time_ledger import Activity, Spent


def spent(run: Run, now: float) -> Spent:
    """Return the time spent by a run in which nothing new is known to be wrong.

    Without a round, it waits until enough nodes have joined, starts until enough are ready, and then is in rendezvous.
    """
    joined_at, enough_at, ledger = run.gathering.joined_since, run.gathering.enough_since, run.durable.ledger
    if run.durable.state is State.FORMING and joined_at is not None:
        ready = (Activity.STARTING, now if enough_at is None else enough_at)
        return ledger.divide(now, (run.activity, joined_at), ready, (Activity.RENDEZVOUS, now))
    if run.health is Health.SILENT:
        return spent_in_silence(run, now)
    return ledger.divide(now, (run.activity, now))


def spent_when_stopped(run: Run, now: float) -> Spent:
    """Return the time spent by a run whose round is stopped, though nothing is known to be wrong with it."""
    stood_since = _stood_since(run, now)
    return spent(run, now) if stood_since is None else _turned(run, stood_since, Activity.STALLED, now)


def spent_when_broken(run: Run, now: float) -> Spent:
    """Return the time spent by a run whose round proves broken now: the time since the first sign went to detecting."""
    # A node that got more time after a silent lease may only have been out of reach, so it is the weakest sign.
    signs = _break_signs(run) or [member.lived_at for member in run.roll.doubtful]
    if run.activity is Activity.SILENT:
        signs = [sign for sign in signs if sign > run.durable.ledger.settled_at]  # up to then it was silent
    broken_at = min(signs, default=now)
    stood_since = _stood_since(run, broken_at)
    worked = (run.activity, broken_at if stood_since is None else min(stood_since, broken_at))
    return run.durable.ledger.divide(now, worked, (Activity.STALLED, broken_at), (Activity.DETECTING, now))


def _stood_since(run: Run, ended_at: float) -> float | None:
    """Return since when no worker of a round that ended at `ended_at` got on; None if they did, or it is not known.

    In a round without a step, it is the time from which the others waited for the culprit of a hang.
    """
    if run.activity is Activity.SILENT:
        return None
    if run.durable.stepped:
        return run.progress.stood_since(ended_at)
    return None if run.watching.suspect is None else run.watching.suspect.at


def _break_signs(run: Run) -> list[float]:
    """Return when each worker failed, and each node was lost, fell silent or stopped, as far as is known.

    A hang is no sign: its time counts as stalled until the round is stopped, see `_stood_since`.
    """
    signs = [failure.at for failure in run.evidence.failures.values() if failure.failure.hang is None]
    signs += [] if run.evidence.lost_at is None else [run.evidence.lost_at]
    signs += [member.lived_at for member in run.roll.in_state(MemberState.SILENT)]
    signs += [member.lease.heard_at - member.observed.idle_s for member in run.roll.in_state(MemberState.STOPPED)]
    return signs


def spent_in_silence(run: Run, now: float) -> Spent:
    """Return the time spent by a run of which no node is heard: from the last message on, it was silent."""
    last = max((member.lived_at for member in run.roll.in_state(MemberState.SILENT)), default=now)
    return _turned(run, max(last, run.roll.heard_at), Activity.SILENT, now)


def spent_with_steps(run: Run, first_step_at: float, step: int, now: float) -> Spent:
    """Return the time spent by a run whose round has done its first step: until then its workers were starting.

    The step may become known together with the end of the round, as after a restart of the coordinator. When the nodes
    of a silent run are heard again, the time since their last message stays silent, whatever they have done.
    """
    ledger = run.durable.ledger
    if run.activity is Activity.SILENT:
        return ledger.divide(now, (Activity.SILENT, now))
    after = Activity.REDONE if run.durable.is_repeated(step) else Activity.TRAINING
    broken_at = min([*_break_signs(run), now])
    started = (Activity.STARTING, min(first_step_at, broken_at))
    return ledger.divide(now, started, (after, broken_at), (Activity.DETECTING, now))


def spent_with_new_steps(run: Run, now: float) -> Spent:
    """Return the time spent by a run whose round has reached the furthest step of earlier rounds."""
    reached = run.durable.reached
    at = None if reached is None else run.progress.pace.reached_at(reached)
    return _turned(run, now if at is None else at, Activity.TRAINING, now)


def spent_at_the_end(run: Run, now: float) -> Spent:
    """Return the time spent by a run whose end shows no fault, as it succeeded or had no round at work.

    It goes to the recorded activity. `run.activity` counts workers as starting as long as they have announced steps and
    done none. Workers that have succeeded without a step were running.
    """
    return run.durable.ledger.divide(now, (run.durable.ledger.activity, now))


def spent_since_newest_step(run: Run, after: Activity, now: float) -> Spent:
    """Return the time spent by a run whose time goes to the activity `after` from its newest step on."""
    newest = now if run.progress.stepped_at is None else run.progress.stepped_at
    return _turned(run, newest, after, now)


def _turned(run: Run, turn: float, after: Activity, now: float) -> Spent:
    """Return the time spent by a run whose activity changed at `turn`."""
    return run.durable.ledger.divide(now, (run.activity, turn), (after, now))
