"""Watches one run: requests looks at its workers, and tells the kernel whether they hang or lag."""

from __future__ import annotations

from coordinatord.core.rounds.effects import Look
from coordinatord.core.rounds.events import Compared, Looked
from coordinatord.core.rounds.queries.conditions import NOW
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.state.wings import WatchingWing
from coordinatord.core.rounds.values.records import (
    BusyWorkerAwaited,
    NodeDrained,
    Record,
    RoundFormed,
    TrainingBegan,
    TrainingResumed,
)
from coordinatord.core.rounds.values.root_cause import WorkerFailure
from coordinatord.core.rounds.values.time_ledger import Activity
from coordinatord.core.watching.hang_watch import HangWatch, TakenLook
from coordinatord.core.watching.lateness import Lateness, are_at_rest
from coordinatord.core.watching.lateness_watch import LatenessWatch, laggard_to_drain, sentence, trains
from coordinatord.core.watching.look_comparison import APART_S, UNASKED, may_hang, why_inconclusive, why_unseen
from coordinatord.core.watching.stack_sources import NoStacksError, stack_sources
from coordinatord.hints.hang_verdict import HangVerdict, notice_of
from coordinatord.hints.seen_worker import longest_wait_s
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.fields import CONSEQUENCES_MAX, LAST_LINES_MAX, LINE_MAX, MESSAGE_MAX
from coordinatord.protocol.messages import Failure, HangKind, Launcher
from coordinatord.protocol.stack_messages import unpack_stacks
from coordinatord.protocol.text import clip

_LEFT_TO_TORCH = "; no restart is left, so only torch's own timeout ends this"


class RunWatch(WatchingWing):
    """Watches the workers of one run, see `WatchingWing`.

    Nothing of it is recorded: a restarted coordinator begins with new looks.
    """

    def __init__(self, run: Run) -> None:
        """Begin without a look."""
        self._run = run
        self._hang, self.lateness = HangWatch(), LatenessWatch()
        self.notice, self.remark = "", ""
        self._is_noted = False
        """Whether it is on record that the others wait for a worker."""

    def follow(self, record: Record) -> None:
        """Forget the looks at workers that get on, or whose round is over."""
        if isinstance(record, RoundFormed):
            self.lateness.clear()
        if isinstance(record, RoundFormed | TrainingBegan | TrainingResumed):
            self._clear()
        elif isinstance(record, BusyWorkerAwaited):
            self._is_noted = True
            self.remark = record.reason if self._is_left_to_torch() else ""

    def _clear(self) -> None:
        self._hang.clear()
        self.notice, self._is_noted, self.remark = "", False, ""

    def next_at(self) -> float | None:
        """Return when to begin the next look or give up a pending one; None unless training has stalled.

        A round without a step has not stalled. Its workers are looked at too if `--hang-timeout` limits the time to
        the first step, or if they report no steps and are at rest. There is no look while a node is not connected, nor
        while workers are in a section, which has its own limit.
        """
        run = self._run
        has_stalled = run.durable.ledger.activity is Activity.STALLED
        at_rest = self._hang.at_rest and _is_judged_by_rest(run)
        if run.durable.state is not State.RUNNING or not (has_stalled or at_rest or _is_timed_without_steps(run)):
            return None
        if run.spec.hang_timeout_s == 0 or run.spec.launcher is Launcher.TORCHRUN:
            return None
        if any(member.session.id is None for member in run.roll.inside):
            return None  # the node comes back, or is lost
        first_at = run.durable.entered_at + _looks_apart_s(run) if _is_timed_without_steps(run) else None
        return max((at for at in (self._hang.due_at, _section_until(run), first_at) if at is not None), default=NOW)

    def look(self, now: float) -> Look | None:
        """Begin a look at all workers of the round; return None if one cannot be asked."""
        number = self._hang.begin(now)
        try:
            sources = stack_sources(self._run, (), brief=True)
        except NoStacksError as error:
            self.notice = str(error)
        else:
            unasked = next((source for source in sources if source.problem), None)
            if unasked is None:
                return Look(self._run.id, self._run.durable.round, number, sources)
            self.notice = f"{UNASKED}: {unasked.node}, {unasked.problem}"
        self._hang.give_up(now)
        return None

    def take(self, event: Looked | Compared, now: float) -> bool:
        """Record answers; ignore those to an old look, or about a round that is over."""
        if event.round != self._run.durable.round:
            return False
        match event:
            case Looked():
                return self._take_stacks(event, now)
            case Compared():
                return self._take_rest(event) | self._take_arrivals(event, now)

    def _take_stacks(self, event: Looked, now: float) -> bool:
        watch, look = self._hang, TakenLook(event.workers, now)
        if not watch.pending or event.number != watch.pending:
            return False
        section_end = _section_until(self._run)
        in_section = section_end is not None and section_end > now
        if self.next_at() is None or in_section or not may_hang(look.workers):
            self.notice = why_unseen(look.workers) or why_inconclusive(look.workers)
            watch.give_up(now)
        elif watch.first is None or self._run.progress.sections.ended_at > watch.first.at:
            watch.keep(look, _looks_apart_s(self._run))
        elif not _are_heard_since(self._run, watch.first.at):
            watch.look_again(now)
        else:
            watch.judge(watch.first, look)
            self.notice = "" if watch.found is None else notice_of(watch.found, look.workers)
            if self._is_left_to_torch():
                self.notice = clip(self.notice, MESSAGE_MAX - len(_LEFT_TO_TORCH)) + _LEFT_TO_TORCH
        return True

    def _take_rest(self, event: Compared) -> bool:
        """Record whether workers that report no steps are at rest."""
        at_rest = are_at_rest(event.nodes) if _is_judged_by_rest(self._run) else None
        if at_rest is None or at_rest is self._hang.at_rest:
            return False
        self._clear()
        self._hang.at_rest = at_rest
        return True

    def _take_arrivals(self, event: Compared, now: float) -> bool:
        """Record when the workers of a round that trains arrived in collectives."""
        if not trains(self._run):
            return False
        self.lateness.take_in(event.nodes, self._run.progress.usual_s, now)
        return True

    def hang(self) -> WorkerFailure | None:
        """Return the culprit as the failure that the round is charged for; None if the round does not hang."""
        found, look = self._hang.found, self._hang.second
        if found is None or look is None or not self._is_hung():
            return None
        return _failure_of(self._run, found, look)

    def awaited(self) -> str:
        """Describe the awaited worker, if it may be busy: once, and again when left to torch. Else empty."""
        found = self._hang.found
        is_new = not self._is_noted or (self._is_left_to_torch() and not self.remark)
        return self.notice if found is not None and is_new and not self._is_hung() else ""

    def _is_hung(self) -> bool:
        """Whether the round hangs: workers wait for one that will not come, or for longer than `--hang-timeout` allows.

        A worker that waits for something outside the job is given some minutes. `--hang-timeout` is a time between
        steps: before the first one, a worker may compute for any time.
        """
        found = self._hang.found
        allows_no_more = bool(self._run.spec.hang_timeout_s) and self._run.durable.stepped
        is_borne = self._hang.is_tolerated or self._is_left_to_torch()
        return found is not None and ((found.is_hang and not is_borne) or allows_no_more)

    def _is_left_to_torch(self) -> bool:
        """Whether a round that seems to hang goes on until torch's own timeout of collectives ends it.

        Where no restart is left, an alarm ends the job. A worker that has ended, or that waits in another collective
        than the others, proves a hang; one that stands still, or data that does not move, may only be slow.
        `--hang-timeout` says how slow is too slow.
        """
        run, found = self._run, self._hang.found
        is_spent = run.durable.restarts_used >= run.spec.max_restarts
        return found is not None and found.rests_on_pace and is_spent and run.spec.hang_timeout_s is None

    def laggard(self) -> NodeDrained | None:
        """Return the drain of the node that some looks in a row have shown to be late."""
        found, known = laggard_to_drain(self._run, self.lateness), lateness_of(self._run)
        if found is None or known is None:
            return None
        why = f"{found.node} drained for its lateness (--drain-laggards): {sentence(known, found)}"
        return NodeDrained("", "", clip(why, MESSAGE_MAX), found.node)


def _is_timed_without_steps(run: Run) -> bool:
    """Whether no step of the round was reported, and `--hang-timeout` limits how long workers may stand still."""
    return not run.durable.stepped and bool(run.spec.hang_timeout_s)


def _is_judged_by_rest(run: Run) -> bool:
    """Whether a round is judged by its collectives: its workers report no steps, and `--hang-timeout` is not given."""
    return run.durable.state is State.RUNNING and reports_no_steps(run) and run.spec.hang_timeout_s is None


def reports_no_steps(run: Run) -> bool:
    """Whether workers report no steps, as far as is known: they announced none, or none has come for long."""
    return not run.durable.stepped and (not run.steps_announced or run.durable.step_overdue)


def _looks_apart_s(run: Run) -> float:
    """Return the time between two looks, in seconds.

    Reported steps show how long workers have stood still. Without them only the looks do, so they are as far apart as
    `--hang-timeout` allows. All nodes must be heard in between, see `_are_heard_since`.
    """
    if _is_timed_without_steps(run):
        return run.spec.hang_timeout_s or 0.0
    return max(APART_S, run.policy.heartbeat_for(len(run.members)))


def _are_heard_since(run: Run, at: float) -> bool:
    """Whether all nodes of the round have been heard since the answers to the first of two looks.

    A worker that stays at one place may be in a section. Only heartbeats show sections, and one from before the first
    look may have been sent before the section began.
    """
    return all(member.lease.heard_at > at for member in run.roll.inside)


def _section_until(run: Run) -> float | None:
    """Return the latest end of the section of the workers; None if they are in none."""
    named = run.progress.sections.longest
    return None if named is None else named.ends_at


def _failure_of(run: Run, found: HangVerdict, look: TakenLook) -> WorkerFailure:
    """Return the hang as the failure of the first culprit: it failed when the others began to wait for it."""
    culprit = next(worker for worker in look.workers if worker.rank == found.ranks[0])
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


def lateness_of(run: Run) -> Lateness | None:
    """Return how late the workers of a run are; None while it does not train, or if that is not known."""
    return run.watching.lateness.known if isinstance(run.watching, RunWatch) and trains(run) else None
