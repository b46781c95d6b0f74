"""What the time of a run went to as of now: where the open time of its ledger has to be cut in two.

Each function here reads the signs that the machine has at this moment. What it makes of them goes into the next record
as a number, because no later life of the daemon could come to it again.
"""

from __future__ import annotations

import math

from coordinatord.core.state.durable import State
from coordinatord.core.state.member import MemberState
from coordinatord.core.state.run import Health, Run
from coordinatord.core.values.time_ledger import Activity, Spent


def spent(run: Run, now: float) -> Spent:
    """Return it for a run that goes on; while a round forms, what there is of a rendezvous may still be in vain."""
    if run.durable.state is State.FORMING and run.enough_since is not None:
        return _split(run, run.enough_since, Activity.RENDEZVOUS, now)
    if run.health is Health.SILENT:
        return spent_when_broken(run, now)  # as far as is known: who is heard again may have gone on
    return run.durable.ledger.split(now, run.activity, run.activity, now)


def spent_when_broken(run: Run, now: float) -> Spent:
    """Return it for a run of which it is seen now that the round is broken: since the first sign, it was not known."""
    signs = [run.lost_at, *(failure.at for failure in run.failures.values())]
    signs += [member.lived_at for member in run.members_in(MemberState.SILENT)]
    signs += [member.heard_at - member.observed.idle_s for member in run.members_in(MemberState.STOPPED)]
    if min(signs) == math.inf:  # whoever is in doubt may only have been out of reach, so any other sign is better
        signs += [member.lived_at for member in run.doubtful]
    return _split(run, min(signs), Activity.DETECTING, now)


def spent_with_steps(run: Run, first_step_at: float, now: float) -> Spent:
    """Return it for a run of which the first step of the round is heard: before, its workers only started."""
    return run.durable.ledger.split(first_step_at, Activity.STARTING, Activity.TRAINING, now)


def spent_at_the_end(run: Run, now: float) -> Spent:
    """Return it for a run that is over with nothing broken: workers that have never reported a step were no start."""
    return run.durable.ledger.split(now, run.durable.ledger.cause, run.durable.ledger.cause, now)


def spent_without_steps(run: Run, now: float) -> Spent:
    """Return it for a run of which it is seen now that it has stalled: it has since its newest step."""
    newest = now if run.progress.stepped_at is None else run.progress.stepped_at
    return _split(run, newest, Activity.STALLED, now)


def spent_with_steps_again(run: Run, now: float) -> Spent:
    """Return it for a run that had stalled, and trains from its newest step on."""
    newest = now if run.progress.stepped_at is None else run.progress.stepped_at
    return _split(run, newest, Activity.TRAINING, now)


def _split(run: Run, turn: float, since: Activity, now: float) -> Spent:
    """Return it for a run whose open time has gone to another cause since `turn`; nothing is open once it is over."""
    before = run.activity
    return run.durable.ledger.split(turn, before, before and since, now)
