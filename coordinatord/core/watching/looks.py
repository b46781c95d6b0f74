"""Has workers looked at, and takes in the answers: which worker holds up the others, and which node is late."""

from __future__ import annotations

from coordinatord.core.rounds.effects import Look
from coordinatord.core.rounds.events import Compared, Looked
from coordinatord.core.rounds.state.cluster import DRAINED_MAX, apply_drains
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.transitions.decision import Decision
from coordinatord.core.rounds.values.records import NodeDrained
from coordinatord.core.rounds.values.root_cause import WorkerFailure
from coordinatord.core.watching.arrivals import laggard_to_drain, sentence, trains
from coordinatord.core.watching.hanging import (
    are_heard_since,
    is_judged_by_rest,
    is_left_to_torch,
    looks_apart_s,
    next_look,
    section_until,
)
from coordinatord.core.watching.lateness import are_at_rest
from coordinatord.core.watching.look_comparison import (
    OUTSIDE_PATIENCE_S,
    UNASKED,
    awaits_outside,
    compare,
    first_named,
    may_hang,
    stands_since,
    why_inconclusive,
    why_unseen,
)
from coordinatord.core.watching.stack_groups import NoStacksError, stack_sources
from coordinatord.hints.hang_verdict import longest_wait_s, notice_of
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.fields import CONSEQUENCES_MAX, LAST_LINES_MAX, LINE_MAX, MESSAGE_MAX
from coordinatord.protocol.messages import Failure, HangKind
from coordinatord.protocol.stack_messages import unpack_stacks
from coordinatord.protocol.text import clip

_LEFT_TO_TORCH = "; no restart is left, so only torch's own timeout ends this"


def begin(run: Run, decision: Decision) -> None:
    """Have all workers of the round looked at, if all of them can be asked."""
    number = run.hang.begin(decision.now)
    try:
        sources = stack_sources(run, (), brief=True)
    except NoStacksError as error:
        run.hang.notice = str(error)
        run.hang.give_up(decision.now)
        return
    unasked = next((source for source in sources if source.problem), None)
    if unasked is None:
        decision.looks.append(Look(run.id, run.durable.round, number, sources))
    else:
        run.hang.notice = f"{UNASKED}: {unasked.node}, {unasked.problem}"
        run.hang.give_up(decision.now)


def take_in(run: Run, event: Looked | Compared, decision: Decision) -> list[Run]:
    """Take in what the workers of a run have answered; return the runs in which something may follow."""
    match event:
        case Looked():
            _take_in_stacks(run, event, decision.now)
            return [run]
        case Compared():
            return _take_in_rest(run, event) + _take_in_arrivals(run, event, decision)


def _take_in_rest(run: Run, event: Compared) -> list[Run]:
    """Take in whether workers that report no steps are at rest; return the run if something may follow."""
    at_rest = are_at_rest(event.nodes) if is_judged_by_rest(run) and event.round == run.durable.round else None
    if at_rest is None or at_rest is run.hang.at_rest:
        return []
    run.hang.clear()
    run.hang.at_rest = at_rest
    return [run]


def _take_in_stacks(run: Run, event: Looked, now: float) -> None:
    """Take in the answers to a look; all but the last look are ignored."""
    watch, look = run.hang, event.workers
    if not watch.pending or (event.round, event.number) != (run.durable.round, watch.pending):
        return
    if next_look(run) is None or section_until(run) > now or not may_hang(look):
        watch.notice = why_unseen(look) or why_inconclusive(look)
        watch.give_up(now)
        return
    if watch.first is None or run.progress.sections.ended_at > watch.first_at:
        watch.keep(look, now, looks_apart_s(run))
        return
    if not are_heard_since(run, watch.first_at):
        watch.look_again(now)
        return
    watch.found, watch.second = compare(watch.first, look), look
    watch.is_tolerated = _is_tolerated(run, now)
    watch.notice = "" if watch.found is None else notice_of(watch.found, look)
    if is_left_to_torch(run):
        watch.notice = clip(watch.notice, MESSAGE_MAX - len(_LEFT_TO_TORCH)) + _LEFT_TO_TORCH
    watch.give_up(now)


def _is_tolerated(run: Run, now: float) -> bool:
    """Whether the others wait for a worker that waits for something outside the job, by all looks for some minutes."""
    watch = run.hang
    if watch.found is None or not awaits_outside(watch.found, watch.second):
        watch.still = ()
        return False
    if not stands_since(watch.still, watch.found, watch.second):
        watch.still, watch.still_at = watch.first or (), watch.first_at
    return now - watch.still_at < OUTSIDE_PATIENCE_S


def count_as_failure(run: Run, now: float) -> None:
    """Count the culprit as the first failure of the round: it failed when the others began to wait for it."""
    verdict, look = run.hang.found, run.hang.second
    assert verdict is not None  # noqa: S101 - it is the row's condition
    culprit = first_named(verdict, look)
    ranks = run.durable.order[culprit.node]
    age_s = longest_wait_s(look)
    names_several = len(verdict.ranks) > 1 and verdict.kind is not HangKind.NETWORK
    failure = Failure(
        rank=culprit.rank,
        local_rank=culprit.rank - ranks.first_rank,
        exit_code=ExitCode.TIMED_OUT,
        pid=0 if culprit.now is None else culprit.now.pid,
        message=verdict.sentence,
        error="",
        last_lines=() if culprit.now is None else _frames(culprit.now.stacks),
        followers=(),
        age_s=age_s,
        hang=verdict.kind,
        hang_ranks=verdict.ranks[:CONSEQUENCES_MAX] if names_several else (),
    )
    member = run.members[culprit.node]
    run.failures[member.node] = WorkerFailure(member.node, member.offer.host, now - age_s, failure)


def _frames(stacks: bytes) -> tuple[str, ...]:
    """Return the stack of the main thread, as lines of text."""
    threads = unpack_stacks(stacks)
    return tuple(clip(frame, LINE_MAX) for frame in threads[0][1][:LAST_LINES_MAX]) if threads else ()


def _take_in_arrivals(run: Run, event: Compared, decision: Decision) -> list[Run]:
    """Take in what a look has shown; return the runs in which something may follow.

    A node that is drained may be in several runs. A look at a round that is over, or no longer trains, is ignored.
    """
    if event.round != run.durable.round or not trains(run):
        return []
    run.lateness.take_in(event.nodes, run.progress.usual_s, decision.now)
    return _drain_laggard(run, decision)


def _drain_laggard(run: Run, decision: Decision) -> list[Run]:
    """Drain the node of a laggard, if the job wants that and can do without it."""
    found, known = laggard_to_drain(run), run.lateness.known
    if found is None or known is None or len(decision.cluster.durable.drained) >= DRAINED_MAX:
        return []
    why = f"{found.node} drained for its lateness (--drain-laggards): {sentence(known, found)}"
    decision.record(NodeDrained("", "", clip(why, MESSAGE_MAX), found.node))
    return apply_drains(decision.cluster)
