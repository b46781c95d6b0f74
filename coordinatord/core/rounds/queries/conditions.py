"""The conditions of the run's table (`transitions/table`): each returns the time from which it holds.

This is `NOW` if it holds already, a later time if it will hold unless something changes, and None if only an event can
bring it about. All deadlines of a run follow from its conditions, so no timer can disagree with the state. Each
docstring is the statement that holds. `exit_awaited` is only a helper, and so are those whose docstrings begin with
"Return".

The name of the function is the name of the condition in databases, metrics and over HTTP.
"""

from __future__ import annotations

from collections.abc import Callable

from coordinatord.core.rounds.queries import next_round
from coordinatord.core.rounds.queries.next_round import next_size, pause_s
from coordinatord.core.rounds.queries.past_round import has_failed, has_succeeded, no_restart, node_gone, verdict
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.evidence import EXIT_PATIENCE_S
from coordinatord.core.rounds.state.member import MemberState
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.due_times import NOW
from coordinatord.core.rounds.values.time_ledger import Activity
from coordinatord.protocol.messages import Launcher, ScaleUp

Condition = Callable[[Run], float | None]


def _now_if(holds: object) -> float | None:
    """Return `NOW` if a condition holds, and else None: only an event can bring it about."""
    return NOW if holds else None


def abandoned(run: Run) -> float | None:
    """No node is left, and no worker lives: at once if the last node left by itself or there was no round.

    Otherwise a lost node that is cut off may still have workers, for `Run.workers_gone_s`.
    """
    if run.roll.unreleased:
        return None
    return NOW if run.emptied_at is None or not run.durable.order else run.emptied_at + run.workers_gone_s


def all_left(run: Run) -> float | None:
    """No node is left, and the user of the last one, or an operator, wanted it to leave."""
    return _now_if(not run.roll.unreleased and run.durable.last_left)


def replaced(run: Run) -> float | None:
    """Another run with another job spec follows, and no node is left in this one."""
    return _now_if(run.replaced)


def settled(run: Run) -> float | None:
    """Enough nodes are ready for a round, and there is no reason to wait for others.

    A round with the most nodes that it may have waits for none. A smaller one waits for nodes whose connection has
    closed, and until the settle window is over. Both wait after a recurring error and for tests of hosts, at most until
    the first join timeout expires. None is formed while there is an obstacle to resuming: a disk that one node cannot
    read, or, after a start of the coordinator, a node that is not heard yet.
    """
    size = next_size(run)
    if size < run.spec.nodes_min or run.durable.stop_asked or run.keeping.obstacle:
        return None
    at = max(run.durable.entered_at + pause_s(run) if pause_s(run) else NOW, run.judging.delays_until)
    if size < run.spec.nodes_max:
        if run.roll.count(MemberState.DISCONNECTED):
            return None
        at = max(at, run.gathering.settle_end(run.policy))
    return before_first_timeout(run, at)


def short_of_nodes(run: Run) -> float | None:
    """A round lacks nodes, quarantined ones would be enough to fill it, and no node has come for a while."""
    reserves = next_round.reserves(run)
    if not reserves:
        return None
    # The last one that is needed also waits for a settle window, in which nodes may come that are not quarantined.
    return max(run.gathering.settle_end(run.policy), reserves[-1].readiness.arrived_at + run.policy.settle_s)


def arrived(run: Run) -> float | None:
    """The round has room for nodes that have arrived, and `--scale-up` lets it end for them.

    If they wait for a checkpoint, the round ends right after the first one since their arrival: later steps would be
    lost. A round in which nodes have succeeded goes on: another one would repeat their work.
    """
    if not run.roll.count(MemberState.READY) or run.roll.round_size >= run.spec.nodes_max or run.durable.succeeded:
        return None
    if run.spec.scale_up is ScaleUp.NEVER:
        return None
    if (checkpoint_at := awaited_checkpoint(run)) is not None:
        return _now_if(run.gathering.settles_from is not None and checkpoint_at >= run.gathering.settles_from)
    if run.roll.round_size + run.roll.count(MemberState.READY) >= run.spec.nodes_max:
        return NOW  # these fill the round, so it waits for no others
    return run.gathering.settle_end(run.policy)


def before_first_timeout(run: Run, at: float) -> float:
    """Return `at`, or the time at which the first join timeout of a ready node expires, if that is earlier."""
    expires_at = run.gathering.join_timeouts.first
    return at if expires_at is None else min(at, expires_at)


def all_started(run: Run) -> float | None:
    """Every node of the round has reported its workers as running, or has succeeded already."""
    return _now_if(run.roll.count(MemberState.RUNNING) + len(run.durable.succeeded) == len(run.durable.order))


def all_succeeded(run: Run) -> float | None:
    """The job has succeeded, and no node writes kept state to the disk, or the wait for that is over.

    In a round that is being stopped, nodes may write even if none is known to: after a restart, the coordinator has to
    hear them first.
    """
    if not has_succeeded(run):
        return None
    may_write = run.keeping.has_disk or run.durable.state is State.STOPPING
    return run.keeping.waits.run.until if may_write else NOW


def success_unwritten(run: Run) -> float | None:
    """The job has succeeded, and the row of `all_succeeded`, which comes first, waits for the disk."""
    return _now_if(has_succeeded(run))


def worker_failed(run: Run) -> float | None:
    """A worker of the round failed."""
    return _now_if(run.evidence.failures)


def node_lost(run: Run) -> float | None:
    """A node of the round is no longer a member, or is silent while others are heard; one that succeeded may leave.

    If no node is heard, the coordinator is cut off: see `outage`. Others count as heard if the last message of any node
    came later than two heartbeats before the end of the silent node's lease. If it is older, the coordinator may be cut
    off, and the leases of the others are about to end too.
    """
    if run.durable.losses:
        return NOW
    if not run.roll.count(MemberState.SILENT) or not run.roll.connected:
        return None
    return _now_if(run.roll.heard_at >= run.roll.expired_at - 2 * run.roll.heartbeat_s)


def unrestorable(run: Run) -> float | None:
    """A node of the round cannot get the state to resume from, so all nodes have to resume from another step."""
    return _now_if(run.keeping.restore_problem)


def outrun(run: Run) -> float | None:
    """Nodes know of a later round than the recorded one. The ranks of that round are lost, so it cannot go on."""
    return _now_if(run.durable.superseded_reason)


def outage(run: Run) -> float | None:
    """Every node of the round has been silent for so long that its workers have ended and its join timeout expired.

    Until then nodes may come back, and the next round is formed of them.
    """
    if not run.roll.all_silent:
        return None
    patience_s = max((member.offer.join_timeout_s for member in run.roll.inside), default=0.0)
    return run.roll.expired_at + run.workers_gone_s + patience_s


def first_step_overdue(run: Run) -> float | None:
    """Workers that announced steps, or reported some in earlier rounds, are late with the first one.

    As for a stall, the time begins anew after a section, and a section has its own limit.
    """
    if run.activity is not Activity.STARTING or run.durable.step_overdue:
        return None
    sections, within_s = run.progress.sections, run.progress.first_steps.within_s(run.policy.first_step_s)
    overdue_at = max(run.durable.entered_at, sections.ended_at) + within_s
    return overdue_at if sections.longest is None else max(overdue_at, sections.longest.ends_at)


def stalled(run: Run) -> float | None:
    """Workers of the round have reported steps, but no new one for too long."""
    return _now_if(run.activity in {Activity.TRAINING, Activity.REDONE} and run.progress.is_idle)


def exit_awaited(run: Run) -> float | None:
    """Some workers ended without an error a while ago, since when no step was done, and others have not ended.

    Where workers report steps, that while is at least as long as the time without a step after which training counts as
    stalled. A section has its own limit. While a node is silent, it is not known which of its workers live.
    """
    if not (run.exits.ended and run.exits.living) or run.roll.count(MemberState.SILENT):
        return None
    progress = run.progress
    if progress.sections.longest is not None:
        return progress.sections.longest.ends_at + EXIT_PATIENCE_S
    last_at = max(run.exits.last_at, progress.sections.ended_at)
    if progress.stepped_at is None:
        return last_at + EXIT_PATIENCE_S
    return max(last_at, progress.stepped_at) + max(EXIT_PATIENCE_S, progress.measured_patience_s)


def exit_overdue(run: Run) -> float | None:
    """Workers of the round are awaited, see `exit_awaited`, and no record says so yet."""
    return None if run.durable.exit_overdue else exit_awaited(run)


def hung(run: Run) -> float | None:
    """Two looks have shown that all others wait for a worker that will not come, or not within `--hang-timeout`."""
    return _now_if(run.watching.hang)


def divergence_found(run: Run) -> float | None:
    """Ranks that should have the same state have different ones, and no record says so yet."""
    return _now_if(run.watching.divergence)


def diverged(run: Run) -> float | None:
    """Ranks have different states, and the next round is to go back to a step at which all were alike."""
    found = run.durable.divergence
    return None if found is None else _now_if(found.back_to)


def resumed(run: Run) -> float | None:
    """A worker of the round has done a step since the stall was recorded."""
    newest, ledger = run.progress.stepped_at, run.durable.ledger
    return _now_if(ledger.activity is Activity.STALLED and newest is not None and newest > ledger.settled_at)


def caught_up(run: Run) -> float | None:
    """Workers of the round have reached the furthest step of earlier rounds, or count their steps anew."""
    reached, ledger = run.durable.reached, run.durable.ledger
    if reached is None or ledger.activity is not Activity.REDONE:
        return None
    return _now_if(run.progress.pace.reached_at(reached) is not None)


def fell_silent(run: Run) -> float | None:
    """No node of the round is heard any more."""
    return _now_if(run.roll.all_silent and not run.durable.silent)


def heard_again(run: Run) -> float | None:
    """A node is connected again after all nodes of the round were silent."""
    return _now_if(run.durable.silent and run.roll.connected)


def node_leaving(run: Run) -> float | None:
    """A node of the round is to leave: its user wants it, or an operator."""
    return _now_if(run.leaving)


def stop_asked(run: Run) -> float | None:
    """An operator wants the run to end; without a round, it waits until kept state is on the disk.

    That is not known until a restarted coordinator has heard from all nodes which steps they hold.
    """
    if run.durable.state is State.FORMING and run.durable.stop_asked:
        return run.keeping.waits.run.until
    return _now_if(run.durable.stop_asked)


def keeping_due(run: Run) -> float | None:
    """The keeping wing has to act: a step is to be written, or to be named for the end of a round."""
    return run.keeping.next_at()


def judging_due(run: Run) -> float | None:
    """The judging wing has to act: tests of hosts begin, or are over."""
    return run.judging.next_at()


def watching_due(run: Run) -> float | None:
    """A look at the workers is due, or one has shown news to record: a busy worker, or that none can be seen."""
    return run.watching.next_at()


def restart_asked(run: Run) -> float | None:
    """An operator wants another round."""
    return _now_if(run.restart_asked)


def node_stopped(run: Run) -> float | None:
    """A node of the round ends its workers unasked, or has ended them: it was cut off for the outage grace."""
    return _now_if(run.roll.count(MemberState.STOPPING, MemberState.STOPPED))


def handed_over(run: Run) -> float | None:
    """A departing node has handed over its kept state, or its time for that is over."""
    return min((wait.until for wait in run.keeping.waits.nodes.values() if wait.until is not None), default=None)


def corroborated(run: Run) -> float | None:
    """The failures of other nodes' workers prove that a node whose session is closed is gone."""
    return _now_if(node_gone(run))


def exhausted(run: Run) -> float | None:
    """All workers are gone, no other round may follow, and kept state is on the disk, see `stop_asked`."""
    return run.keeping.waits.run.until if has_failed(run) else None


def torchrun_exhausted(run: Run) -> float | None:
    """All workers are gone, the torchrun whose workers failed has left, and too few nodes remain.

    torchrun counts restarts by itself. It leaves when it has none left, and does not come back.
    """
    if run.roll.with_workers or run.spec.launcher is not Launcher.TORCHRUN:
        return None
    cause = verdict(run).root_cause
    if cause is None:
        return None
    remaining = [
        node for node, member in run.members.items() if member.durable.outcome is None and node not in run.leaving
    ]
    return _now_if(cause.node not in remaining and len(remaining) < run.spec.nodes_min)


def all_stopped(run: Run) -> float | None:
    """All workers of the round are gone, and another round may follow."""
    return _now_if(not (run.roll.with_workers or has_succeeded(run)) and no_restart(run) is None)


def stop_overdue(run: Run) -> float | None:
    """A node has not ended its workers within the longest stop timeout of the round, plus the policy's limit."""
    return run.evidence.stop_overdue_at if run.roll.with_workers else None


def awaited_checkpoint(run: Run) -> float | None:
    """Return when the last checkpoint became known; None if nodes that arrive do not wait for the next one."""
    return run.keeping.checkpoint_at if run.spec.scale_up is ScaleUp.AT_CHECKPOINT else None
