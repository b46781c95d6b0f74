"""When a row of the table applies: each condition returns the time from which it holds.

A condition that holds already returns `NOW`. One that will hold unless something changes returns a later time. One that
only an event can bring about returns None. All deadlines of a run follow from these, so there are no timers that could
disagree with the state. A condition has the name of its function in databases, metrics and over HTTP.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from coordinatord.core.rounds.queries.corroboration import node_gone
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import MemberState
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.time_ledger import Activity
from coordinatord.protocol.messages import Launcher, ScaleUp

Condition = Callable[[Run], float | None]

NOW = -math.inf


def _when(holds: object) -> float | None:
    return NOW if holds else None


def abandoned(run: Run) -> float | None:
    """No node is left: at once if the last node left by itself or there was no round, else once no worker lives."""
    if run.roll.unreleased:
        return None
    return NOW if run.emptied_at is None or not run.durable.order else run.emptied_at + run.workers_gone_s


def all_left(run: Run) -> float | None:
    """No node is left, and the last one left on purpose: its user or an operator wanted that."""
    return _when(not run.roll.unreleased and run.durable.last_left)


def replaced(run: Run) -> float | None:
    """A run of the same job with another spec is to follow, and no node is left that needs this one."""
    return _when(run.replaced)


def full(run: Run) -> float | None:
    """The ready nodes are as many as a round may have, and no recurring error delays it.

    What is on the disk has to be of use to them all, if the round would begin anew otherwise. After a start of the
    coordinator all nodes are heard first, since the others may keep what these resume from.
    """
    if run.roll.count(MemberState.READY) < run.spec.nodes_max or run.durable.stop_asked:
        return None
    return None if run.keeping.obstacle() else _pause_end(run)


def settled(run: Run) -> float | None:
    """Enough nodes are ready, and none has arrived for a while; a node that is back from the last round is no arrival.

    A recurring error delays this, and so does a disk that is of no use to one of them, as in `full`. All but
    the disk's delay ends before the join timeout of a ready node.
    """
    if run.roll.count(MemberState.READY) < run.spec.nodes_min or run.roll.count(MemberState.DISCONNECTED):
        return None
    if run.durable.stop_asked or run.keeping.obstacle():
        return None
    return before_first_timeout(run, max(_settle_end(run), _pause_end(run)))


def arrived(run: Run) -> float | None:
    """The round has room, and nodes have arrived that could fill it. A round that is about to succeed goes on.

    `--scale-up` says whether the round ends for them, and whether they wait for a checkpoint. In that case it ends as
    soon as the checkpoint is written, since each later step would be lost.
    """
    if not run.roll.count(MemberState.READY) or run.roll.round_size >= run.spec.nodes_max or run.durable.succeeded:
        return None
    if run.spec.scale_up is ScaleUp.NEVER:
        return None
    if (checkpoint_at := awaited_checkpoint(run)) is not None:
        return _when(run.gathering.ready_first is not None and checkpoint_at >= run.gathering.ready_first)
    if run.roll.round_size + run.roll.count(MemberState.READY) >= run.spec.nodes_max:
        return NOW  # these fill the round, so it waits for no others
    return _settle_end(run)


def _pause_end(run: Run) -> float:
    return before_first_timeout(run, run.durable.entered_at + run.pause_s) if run.pause_s else NOW


def before_first_timeout(run: Run, at: float) -> float:
    """Return `at`, or the time at which the first of the ready nodes stops waiting, if that is earlier."""
    give_up_at = run.gathering.join_timeouts.first
    return at if give_up_at is None else min(at, give_up_at)


def _settle_end(run: Run) -> float:
    """Return when the wait for more nodes is over.

    A node arrives when it joins, so this time passes while it prepares. Nodes that prepare at the same time are not
    ready at the same instant: while one prepares, the last one that became ready counts as an arrival.
    """
    if run.gathering.ready_first is None:
        return NOW
    policy, last = run.policy, run.gathering.arrived_last
    if run.roll.count(MemberState.PREPARING):
        last = max(last, run.gathering.ready_last)
    return min(last + policy.settle_s, run.gathering.ready_first + policy.settle_max_s)


def all_started(run: Run) -> float | None:
    """Every node of the round has reported its workers as running."""
    return _when(run.roll.count(MemberState.RUNNING) + len(run.durable.succeeded) == len(run.durable.order))


def all_succeeded(run: Run) -> float | None:
    """Every worker of the round exited with 0, and none of them because it was asked to end.

    That is on record, so it holds as well when a node that had done its part is lost.
    """
    return _when(len(run.durable.succeeded) == len(run.durable.order))


def worker_failed(run: Run) -> float | None:
    """A worker of the round failed."""
    return _when(run.evidence.failures)


def node_lost(run: Run) -> float | None:
    """A node of the round is no longer a member, or is silent while others are heard; one that succeeded may go.

    If no node is heard, it is the coordinator that is cut off: see `outage`. Nodes count as heard if the last message
    came at most two heartbeats before the silent node's lease ended.
    """
    done_and_gone = len(run.durable.succeeded) - run.roll.count(MemberState.SUCCEEDED)
    if run.roll.round_size + done_and_gone < len(run.durable.order):
        return NOW
    if not run.roll.count(MemberState.SILENT) or not run.roll.connected:
        return None
    heartbeat_s = run.policy.heartbeat_for(len(run.members))
    return _when(run.roll.heard_at >= run.roll.expired_at - 2 * heartbeat_s)


def unrestorable(run: Run) -> float | None:
    """A node of the round cannot get the state that its workers resume from: all have to resume from another step."""
    return _when(run.keeping.restore_problem())


def outrun(run: Run) -> float | None:
    """Nodes know of a later round than was recorded. Its ranks are lost, so it cannot go on."""
    return _when(run.durable.superseded_reason)


def outage(run: Run) -> float | None:
    """Every node of the round has been silent for so long that it has ended its workers and given up its search.

    Before that the nodes may come back: the next round forms of them.
    """
    if not run.roll.all_silent:
        return None
    patience_s = max((member.offer.join_timeout_s for member in run.roll.inside), default=0.0)
    return run.roll.expired_at + run.workers_gone_s + patience_s


def first_step_overdue(run: Run) -> float | None:
    """Workers that announced steps, or reported some in earlier rounds, take too long to do the first one."""
    if run.activity is not Activity.STARTING or run.durable.step_overdue:
        return None
    return run.durable.entered_at + run.policy.first_step_s


def stalled(run: Run) -> float | None:
    """Workers of the round have reported steps, and have reported none for too long."""
    activity = run.durable.ledger.activity
    return _when((activity is Activity.TRAINING or activity is Activity.REDONE) and run.progress.is_idle)


def look_due(run: Run) -> float | None:
    """Training has stalled, and it is time to look where the workers stand."""
    return run.watching.next_at()


def hung(run: Run) -> float | None:
    """Two looks have shown a worker that all others wait for, and that will not come."""
    return _when(run.watching.hang())


def busy_awaited(run: Run) -> float | None:
    """Two looks have shown a worker that computes while all others wait for it, and it is not on record yet."""
    return _when(run.watching.awaited())


def resumed(run: Run) -> float | None:
    """A worker of the round has done a step since the stall was recorded."""
    newest, ledger = run.progress.stepped_at, run.durable.ledger
    return _when(ledger.activity is Activity.STALLED and newest is not None and newest > ledger.settled_at)


def caught_up(run: Run) -> float | None:
    """Workers of the round have come to the furthest step of the rounds before it, or count their steps anew."""
    reached, ledger = run.durable.reached, run.durable.ledger
    if reached is None or ledger.activity is not Activity.REDONE:
        return None
    return _when(run.progress.reached_at(reached) is not None)


def fell_silent(run: Run) -> float | None:
    """No node of the round can be heard any more."""
    return _when(run.roll.all_silent and not run.durable.silent)


def heard_again(run: Run) -> float | None:
    """A node can be heard, after all of the round were silent.

    A restart of the coordinator does not show that.
    """
    return _when(run.durable.silent and run.roll.connected)


def node_leaving(run: Run) -> float | None:
    """A node of the round is to leave: its user wants it, or an operator."""
    return _when(run.leaving)


def stop_asked(run: Run) -> float | None:
    """An operator wants the run to end; between two rounds it does when the disk has what was kept.

    A coordinator that was started again meanwhile knows what was kept when it has heard all nodes.
    """
    if run.durable.state is State.FORMING and run.durable.stop_asked:
        return run.keeping.wait_at_end().until
    return _when(run.durable.stop_asked)


def keeping_due_first(run: Run) -> float | None:
    """What nodes keep needs something before nodes are let go and rounds are formed."""
    return run.keeping.next_at(first=True)


def keeping_due(run: Run) -> float | None:
    """What nodes keep needs something: a step is to be written, or to be named for the end of a round."""
    return run.keeping.next_at()


def restart_asked(run: Run) -> float | None:
    """An operator wants another round."""
    return _when(run.restart_asked)


def node_stopped(run: Run) -> float | None:
    """A node of the round ends its workers unasked, or has ended them, as it does when it is cut off for long."""
    return _when(run.roll.count(MemberState.STOPPING, MemberState.STOPPED))


def given(run: Run) -> float | None:
    """Nodes that are to leave have handed over what only they keep, or their time for that is over."""
    return min((wait.until for wait in run.keeping.waits().values() if wait.until is not None), default=None)


def corroborated(run: Run) -> float | None:
    """A node whose session is closed is proved to be gone, by what workers of other nodes failed of."""
    return _when(node_gone(run))


def exhausted(run: Run) -> float | None:
    """All workers are gone, the budget allows for no other round or none would help, and the disk has what was kept.

    A coordinator that was started again meanwhile knows what was kept when it has heard all nodes.
    """
    return run.keeping.wait_at_end().until if run.has_failed else None


def given_up(run: Run) -> float | None:
    """All workers are gone, and so is the torchrun in which they failed; too few nodes are left to wait for.

    torchrun counts restarts by itself. It leaves when it has none left, and does not come back.
    """
    if run.roll.with_workers or run.spec.launcher is not Launcher.TORCHRUN:
        return None
    cause = run.verdict.charged
    if cause is None:
        return None
    left = [node for node, member in run.members.items() if member.durable.outcome is None and node not in run.leaving]
    return _when(cause.node not in left and len(left) < run.spec.nodes_min)


def all_stopped(run: Run) -> float | None:
    """All workers of the round are gone, the budget allows for another one, and that may help."""
    return _when(not run.roll.with_workers and run.no_restart is None)


def stop_overdue(run: Run) -> float | None:
    """A node that lives has not ended its workers within the time that it set for itself."""
    return run.evidence.stop_overdue_at if run.roll.with_workers else None


def awaited_checkpoint(run: Run) -> float | None:
    """Return when the last checkpoint was written, in the past before one was; None if arrivals wait for none."""
    return run.keeping.checkpoint_at if run.spec.scale_up is ScaleUp.AT_CHECKPOINT else None
