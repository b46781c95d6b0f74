"""When to look at the workers of a run that does no step, and what follows from the looks."""

from __future__ import annotations

from coordinatord.core.rounds.queries.conditions import NOW
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.root_cause import WorkerFailure
from coordinatord.core.rounds.values.time_ledger import Activity
from coordinatord.core.watching.hang_watch import HangWatch, TakenLook
from coordinatord.core.watching.look_comparison import APART_S, first_named
from coordinatord.hints.hang_verdict import HangVerdict
from coordinatord.hints.seen_worker import longest_wait_s
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.fields import CONSEQUENCES_MAX, LAST_LINES_MAX, LINE_MAX
from coordinatord.protocol.messages import Failure, HangKind, Launcher
from coordinatord.protocol.stack_messages import unpack_stacks
from coordinatord.protocol.text import clip


def next_look(run: Run, watch: HangWatch) -> float | None:
    """Return when to look at the workers, or to give a look up; None unless training has stalled, or if none is wanted.

    A round without a step has not stalled. Its workers are looked at as well if `--hang-timeout` limits the time to the
    first step, or if they report no steps and are at rest. There is no look while a node is not connected, nor while
    workers are in a section, which has its own limit.
    """
    has_stalled = run.durable.ledger.activity is Activity.STALLED
    at_rest = watch.at_rest and is_judged_by_rest(run)
    if run.durable.state is not State.RUNNING or not (has_stalled or at_rest or is_timed_without_steps(run)):
        return None
    if run.spec.hang_timeout_s == 0 or run.spec.launcher is Launcher.TORCHRUN:
        return None
    if any(member.session is None for member in run.roll.inside):
        return None  # the node comes back, or is lost
    first_at = run.durable.entered_at + looks_apart_s(run) if is_timed_without_steps(run) else None
    return max((at for at in (watch.due_at, section_until(run), first_at) if at is not None), default=NOW)


def is_timed_without_steps(run: Run) -> bool:
    """Whether no step of the round was reported, and `--hang-timeout` limits how long workers may stand still."""
    return not run.durable.stepped and bool(run.spec.hang_timeout_s)


def is_judged_by_rest(run: Run) -> bool:
    """Whether a round is judged by its collectives: its workers report no steps, and `--hang-timeout` is not given."""
    return run.durable.state is State.RUNNING and reports_no_steps(run) and run.spec.hang_timeout_s is None


def reports_no_steps(run: Run) -> bool:
    """Whether workers report no steps, as far as is known: they announced none, or none has come for long."""
    return not run.durable.stepped and (not run.steps_announced or run.durable.step_overdue)


def looks_apart_s(run: Run) -> float:
    """Return how far two looks are apart, in seconds.

    Steps show for how long none was done. Without steps only the looks show it, so they are as far apart as that may
    last. All nodes are to be heard between two looks, see `are_heard_since`.
    """
    if is_timed_without_steps(run):
        return run.spec.hang_timeout_s or 0.0
    return max(APART_S, run.policy.heartbeat_for(len(run.members)))


def are_heard_since(run: Run, at: float) -> bool:
    """Whether all nodes of the round have been heard since the first of two looks was taken in.

    Only then it is known whether a worker that both looks show at one place is in a section: a look does not show it,
    and the heartbeat before it may have been sent before the section began.
    """
    return all(member.heard_at > at for member in run.roll.inside)


def section_until(run: Run) -> float | None:
    """Return until when the section of the workers may go on; None if they are in none."""
    named = run.progress.sections.longest
    return None if named is None else named.ends_at


def is_hung(run: Run, watch: HangWatch) -> bool:
    """Whether the round hangs: workers wait for one that will not come, or for longer than `--hang-timeout` allows.

    A worker that waits for something outside the job is given some minutes. `--hang-timeout` is a time between steps:
    before the first one, a worker may compute for any time.
    """
    found = watch.found
    allows_no_more = bool(run.spec.hang_timeout_s) and run.durable.stepped
    is_borne = watch.is_tolerated or is_left_to_torch(run, found)
    return found is not None and ((found.is_hang and not is_borne) or allows_no_more)


def is_left_to_torch(run: Run, found: HangVerdict | None) -> bool:
    """Whether a round that seems to hang goes on until torch's own timeout of collectives ends it.

    Where no restart is left, an alarm ends the job. A worker that has ended, or that waits in another collective than
    the others, proves a hang; one that stands still, or data that does not move, may only be slow. `--hang-timeout`
    says how slow is too slow.
    """
    is_spent = run.durable.restarts_used >= run.spec.max_restarts
    return found is not None and found.rests_on_pace and is_spent and run.spec.hang_timeout_s is None


def failure_of(run: Run, found: HangVerdict, look: TakenLook) -> WorkerFailure:
    """Return the hang as the failure of the first culprit: it failed when the others began to wait for it."""
    culprit = first_named(found, look.workers)
    age_s = longest_wait_s(look.workers)
    names_several = len(found.ranks) > 1 and found.kind is not HangKind.NETWORK
    failure = Failure(
        rank=culprit.rank,
        local_rank=culprit.rank - run.durable.order[culprit.node].first_rank,
        exit_code=ExitCode.TIMED_OUT,
        pid=0 if culprit.now is None else culprit.now.pid,
        message=found.sentence,
        error="",
        last_lines=() if culprit.now is None else _frames(culprit.now.stacks),
        followers=(),
        age_s=age_s,
        hang=found.kind,
        hang_ranks=found.ranks[:CONSEQUENCES_MAX] if names_several else (),
    )
    return WorkerFailure(culprit.node, run.members[culprit.node].offer.host, look.at - age_s, failure)


def _frames(stacks: bytes) -> tuple[str, ...]:
    """Return the stack of the main thread, as lines of text."""
    threads = unpack_stacks(stacks)
    return tuple(clip(frame, LINE_MAX) for frame in threads[0][1][:LAST_LINES_MAX]) if threads else ()
