"""Judges the round that is over: what ended it, what that costs, and whether another round may follow.

A round is over when it is being stopped and no worker of it lives. Before that, the functions judge by the evidence so
far, and a failure that is reported later may change the answer.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec.structs import replace

from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import MAY_HAVE_WORKERS, Member, MemberState
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.root_cause import GoodExit, RoundVerdict, WorkerFailure, find_root_cause
from coordinatord.hints.network import lost_connection
from coordinatord.hints.same_error import have_same_error, is_at_same_place, is_repeat
from coordinatord.protocol.fields import CONSEQUENCES_MAX, DURATION_S_MAX
from coordinatord.protocol.messages import Cause, Failure, Report, SecondaryFailure, Straggler


class NoRestart(StrEnum):
    """Why no round follows one that a failure has ended; each value is the end of a sentence, see `Reasons.budget`."""

    FINAL = "no restart mends this error"
    SPENT = "restarts used: {used}"
    SAME_ERROR = (
        "the script failed with the same error at the same place in two rounds, without a new step in between: mend it,"
        " or give --max-futile-rounds 0 if the cause is outside the job"
    )
    SAME_ERROR_SOON = (
        "the script failed with the same error at the same place in two short rounds, and reports no steps, so nobody"
        " knows whether it got on: mend it, or give --max-futile-rounds 0 if the cause is outside the job"
    )
    NO_PROGRESS = "{futile} rounds in a row have failed without a new step, see --max-futile-rounds"

    @property
    def gets_nowhere(self) -> bool:
        """Whether a restart was left, and would most likely not have got any further."""
        return self not in {NoRestart.FINAL, NoRestart.SPENT}


def verdict(run: Run) -> RoundVerdict:
    """Judge what ended the round, by the evidence so far."""
    evidence, durable = run.evidence, run.durable
    members = [run.members[node] for node in durable.order if node in run.members]
    heard = [member for member in members if run.is_about_round(member.observed)]
    good_exits = [
        GoodExit(member.node, ended.rank, member.lease.heard_at - ended.age_s, ended.output)
        for member in heard
        for ended in member.observed.ended
    ]
    return find_root_cause(
        durable.stop_reason.sentence,
        evidence.consequences_from,
        evidence.failures.values(),
        durable.losses,
        good_exits,
        run.policy.collateral_s,
        evidence.failed_too.values(),
        sum(own.workers for own in durable.order.values()),
        [member.node for member in heard if member.observed.cut_off],
    )


def over_at(run: Run) -> float:
    """Return the seconds from the run's opening to the stop of the round that is over: the ledger was settled then."""
    return run.durable.ledger.settled.total


def restarts_within(run: Run, total: float) -> tuple[float, ...]:
    """Return when restarts were charged in the window up to `total`, in seconds since the run was opened."""
    window_s = run.spec.restart_window_s or 0.0
    return tuple(at for at in run.durable.charged_at if at > total - window_s)


def restarts_counted(run: Run, total: float) -> int:
    """Return how many restarts count against `--max-restarts` at `total` seconds since the run was opened."""
    counts_all = run.spec.restart_window_s is None
    return run.durable.restarts_used if counts_all else len(restarts_within(run, total))


def has_no_restart_left(run: Run, total: float) -> bool:
    """Whether no restart is left for a charged failure at `total` seconds since the run was opened."""
    return restarts_counted(run, total) >= run.spec.max_restarts


def is_last_round(run: Run, total: float) -> bool:
    """Whether a charged failure of the round at work, at `total` seconds since the run was opened, would end the run.

    Either no restart is left then, or too many rounds in a row have failed without a new step.
    """
    if has_no_restart_left(run, total):
        return True
    return 0 < run.spec.max_futile_rounds <= run.durable.futile + 1 and not _got_somewhere(run, total)


def repeats(run: Run) -> int:
    """Return how many rounds in a row before the one that is over had the same error.

    The next round pauses for that (`Policy.pause_after`), so that rounds which fail at once do not use up the budget.
    So only a short round without any step continues the row; `futile` asks whether rounds get any further.
    """
    root, last = verdict(run).root_cause, run.durable.report
    if root is None or last is None or last.round != run.durable.round - 1 or run.durable.stepped:
        return 0
    return run.durable.repeats + 1 if _is_short(run, over_at(run)) and is_repeat(root.failure, last.failure) else 0


def futile(run: Run) -> int:
    """Return how many rounds in a row, the one that is over included, have failed without a new step.

    A round without a new step is left out if no failure ended it, or a preemption did.
    """
    if _got_somewhere(run, over_at(run)):
        return 0
    root = verdict(run).root_cause
    return run.durable.futile + (root is not None and root.cause is not Cause.PREEMPTED)


def _got_somewhere(run: Run, total: float) -> bool:
    """Whether the round has done a new step by `total` seconds since the run was opened.

    A new step is one that no earlier round has done. Where no steps are reported or announced, a round that went on for
    a while counts as one that got somewhere. So does one in which the script began to count its steps anew, as for each
    epoch, since nobody knows how far it came.
    """
    if _tells_steps(run):
        return run.furthest != run.durable.reached or run.progress.pace.counts_anew
    return not _is_short(run, total)


def _tells_steps(run: Run) -> bool:
    """Whether workers of the run have reported steps, or announced in this round that they will."""
    return run.durable.reports_steps or run.steps_announced


def _is_short(run: Run, total: float) -> bool:
    """Whether the round is too short at `total` seconds since the run was opened to count as progress by its length."""
    current = run.durable.rounds.current
    return current is not None and total - current.formed_at <= run.policy.repeat_within_s


def no_restart(run: Run) -> NoRestart | None:
    """Return why no round follows the one that is over; None if one does, or if no failure ended it."""
    root, limit = verdict(run).root_cause, run.spec.max_futile_rounds
    if root is None:
        return None
    if root.failure.final:
        return NoRestart.FINAL
    if root.cause.is_charged and has_no_restart_left(run, over_at(run)):
        return NoRestart.SPENT
    divergence = run.durable.divergence
    goes_back = divergence is not None and divergence.back_to is not None  # so the next round begins from another state
    if not limit or goes_back:  # without a limit, a user wants rounds as long as there are restarts
        return None
    if root.cause is Cause.USER_CODE and futile(run) and _fails_as_before(run, root.failure):
        return NoRestart.SAME_ERROR if _tells_steps(run) else NoRestart.SAME_ERROR_SOON
    return NoRestart.NO_PROGRESS if futile(run) >= limit else None


def _fails_as_before(run: Run, failure: Failure) -> bool:
    """Whether the round before failed with the same error at the same place, and this one came as far or did no step.

    A round that starts from a checkpoint does steps again, and then meets the same error. A failure at an earlier step
    than the furthest may have another cause.
    """
    last = run.durable.report
    if last is None or last.round != run.durable.round - 1:
        return False
    came_as_far = run.furthest_here in {None, run.durable.reached}
    return came_as_far and is_repeat(failure, last.failure) and is_at_same_place(failure, last.failure)


def has_succeeded(run: Run) -> bool:
    """Whether the job has succeeded: every worker of the round exited with 0, and none because it was asked to end.

    Each node's success is recorded, so it counts even if the node is lost later.
    """
    return 0 < len(run.durable.succeeded) == len(run.durable.order)


def has_failed(run: Run) -> bool:
    """Whether the job has failed for good: no worker lives, and no other round may follow."""
    return run.durable.state is State.STOPPING and not run.roll.with_workers and no_restart(run) is not None


def is_last(run: Run) -> bool:
    """Whether the round is over and was the last one: the job has succeeded, or failed for good."""
    return has_succeeded(run) or has_failed(run)


def is_ending(run: Run) -> bool:
    """Whether no worker lives, and nodes are about to leave with what their memory holds."""
    if run.durable.state is State.FORMING:
        return bool(run.durable.stop_asked or run.leaving or run.roll.count(MemberState.HANDING_OVER))
    return is_last(run)


# The report on it


def report_on(run: Run, cause: WorkerFailure | None, now: float) -> Report | None:
    """Return the report on the round that is over, with this failure as its cause; None without one.

    Every node of the job shows it, so a user sees on any terminal why the round failed.
    """
    if cause is None:
        return None
    others = [failure for failure in run.evidence.failures.values() if failure.node != cause.node]
    # Workers that were stopped when their own error had ended them count only if it is the same error.
    failed_too = run.evidence.failed_too.values()
    others += [failure for failure in failed_too if have_same_error(failure.failure, cause.failure)]
    consequences = _followers(cause, same_error=True)
    for other in sorted(others, key=lambda each: each.at):
        failure, same = other.failure, have_same_error(other.failure, cause.failure)
        consequences.append(SecondaryFailure(other.node, failure.rank, failure.exit_code, same, failure.left))
        consequences += _followers(other, same_error=same)
    step, stragglers = _stragglers(run)
    return Report(
        round=run.durable.round,
        nodes=len(run.durable.order),
        node=cause.node,
        host=cause.host,
        failure=replace(cause.failure, age_s=_age_s(now - cause.at)),
        consequences=tuple(consequences[:CONSEQUENCES_MAX]),
        consequences_count=len(consequences),
        same_error_count=cause.same_error_count,
        early=cause.early,
        early_output=cause.early_output,
        step=step,
        stragglers=stragglers,
        cause=cause.cause,
        workers=cause.workers,
        excused_by=cause.excused_by,
    )


def _followers(cause: WorkerFailure, *, same_error: bool) -> list[SecondaryFailure]:
    """Return the failures of a node after its first one; `same_error` if that has the same error as the root cause."""
    return [
        SecondaryFailure(cause.node, each.rank, each.exit_code, each.same_error and same_error, each.left)
        for each in cause.failure.followers
    ]


def _stragglers(run: Run) -> tuple[int | None, tuple[Straggler, ...]]:
    """Return the furthest step of the round, and the workers that had not reached it, the furthest behind first."""
    workers = list(run.worker_steps(run.members.values()))
    furthest = max((step for _, _, step in workers), default=None)
    behind = sorted((step, rank, member.node) for member, rank, step in workers if step != furthest)
    return furthest, tuple(Straggler(node, rank, step) for step, rank, node in behind[:CONSEQUENCES_MAX])


def aged_report(report: Report, run: Run, now: float) -> Report:
    """Return the run's report with the age of its failure as of now."""
    failure = report.failure
    return replace(report, failure=replace(failure, age_s=_age_s(failure.age_s + now - run.durable.reported_at)))


def _age_s(age_s: float) -> float:
    return min(max(0.0, age_s), DURATION_S_MAX)


# A node that is gone


def node_gone(run: Run) -> Member | None:
    """Return the node of the round whose workers are proved to be gone before its time to reconnect is over; else None.

    Two signs together prove it. A closed session may be a fault of the network, so by itself it leaves the node a
    second to reconnect. A worker that failed because a peer closed a connection shows that some process has ended, but
    not which. If all other nodes have ended their workers, and none of these explains that failure, the process was on
    the node whose session is closed.

    The check costs O(nodes), but only runs when the round waits for nothing else.
    """
    # A node that is gone already might explain the failure as well.
    waits_for_one = run.roll.with_workers == 1 and run.roll.round_size == len(run.durable.order)
    if not waits_for_one or not run.evidence.failures:
        return None
    (suspect,) = run.roll.in_state(*MAY_HAVE_WORKERS)
    failures = run.evidence.failures.values()
    first_at = min(failure.at for failure in failures)
    if not _may_have_caused(run, suspect, first_at):
        return None
    for member in run.roll.inside:
        if member is not suspect and not _is_innocent(member, first_at):
            return None
    return suspect if all(_is_consequence(failure.failure) for failure in failures) else None


def _may_have_caused(run: Run, suspect: Member, first_at: float) -> bool:
    """Whether a node's session had closed when the first worker failed, or soon after, and not because of the stop."""
    stopped_at = run.evidence.consequences_from
    failed_after_stop = stopped_at is not None and first_at >= stopped_at
    is_ending = suspect.node in run.evidence.failures or suspect.state is MemberState.STOPPING
    return (
        suspect.session.vanished
        and suspect.silent_since <= first_at + run.policy.collateral_s
        and not (failed_after_stop or is_ending or _may_have_closed(suspect))
    )


def _is_innocent(member: Member, first_at: float) -> bool:
    """Whether a node was connected when the first worker failed, still is, and has closed no connection to a peer."""
    was_connected = member.session.id is not None and member.session.connected_at <= first_at
    return was_connected and member.lease.is_in_touch() and not _may_have_closed(member)


def _may_have_closed(member: Member) -> bool:
    """Whether workers of a node may have closed their connections, though none of them has failed."""
    return member.leaves or bool(member.observed.ended) or member.state is MemberState.SUCCEEDED


def _is_consequence(failure: Failure) -> bool:
    """Whether all failed workers of a node failed because a connection to a peer was closed."""
    return lost_connection(failure) and all(follower.same_error for follower in failure.followers)
