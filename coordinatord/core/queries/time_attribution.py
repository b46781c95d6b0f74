"""Splits the open time of a run between activities, as of now.

Each function here reads the signs that the machine has at this moment. The result goes into the next record as a
number, because no later life of the daemon could come to it again.
"""

from __future__ import annotations

import math

from coordinatord.core.state.durable import State
from coordinatord.core.state.member import MemberState
from coordinatord.core.state.run import Health, Run
from coordinatord.core.values.time_ledger import Activity, Spent


def spent(run: Run, now: float) -> Spent:
    """Return the time spent by a run that goes on.

    While a round forms, part of that time may still prove spent in vain.
    """
    if run.durable.state is State.FORMING and run.enough_since is not None:
        return _split(run, run.enough_since, Activity.RENDEZVOUS, now)
    if run.health is Health.SILENT:
        return spent_when_broken(run, now)  # as far as is known: a node that is heard again may have gone on
    return run.durable.ledger.split(now, run.activity, run.activity, now)


def spent_when_broken(run: Run, now: float) -> Spent:
    """Return the time spent by a run whose round proves broken now: from the first sign on, that was being detected."""
    signs = [run.lost_at, *(failure.at for failure in run.failures.values())]
    signs += [member.lived_at for member in run.members_in(MemberState.SILENT)]
    signs += [member.heard_at - member.observed.idle_s for member in run.members_in(MemberState.STOPPED)]
    if min(signs) == math.inf:  # a node in doubt may only have been out of reach, so any other sign is better
        signs += [member.lived_at for member in run.doubtful]
    return _split(run, min(signs), Activity.DETECTING, now)


def spent_with_steps(run: Run, first_step_at: float, now: float) -> Spent:
    """Return the time spent by a run whose round has its first step now: until then its workers were starting."""
    return run.durable.ledger.split(first_step_at, Activity.STARTING, Activity.TRAINING, now)


def spent_at_the_end(run: Run, now: float) -> Spent:
    """Return the time spent by a run that ended well: workers that never reported a step were not starting."""
    return run.durable.ledger.split(now, run.durable.ledger.activity, run.durable.ledger.activity, now)


def spent_without_steps(run: Run, now: float) -> Spent:
    """Return the time spent by a run that proves stalled now: the stall began with its newest step."""
    newest = now if run.progress.stepped_at is None else run.progress.stepped_at
    return _split(run, newest, Activity.STALLED, now)


def spent_with_steps_again(run: Run, now: float) -> Spent:
    """Return the time spent by a run that had stalled, and trains again since its newest step."""
    newest = now if run.progress.stepped_at is None else run.progress.stepped_at
    return _split(run, newest, Activity.TRAINING, now)


def _split(run: Run, turn: float, since: Activity, now: float) -> Spent:
    """Return the time spent by a run whose activity changed at `turn`; no time is open once the run is over."""
    before = run.activity
    return run.durable.ledger.split(turn, before, before and since, now)
