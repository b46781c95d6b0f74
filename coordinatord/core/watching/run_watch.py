"""The door of this wing: `RunWatch` implements `WatchingWing`, by which a run knows if workers hang, lag or diverge.

It decides when to *look*. A look is a sample of every worker at one moment, for which the shell asks all nodes at once
(`Look`, answered by `Looked`). A pair of looks, some time apart, shows a hang. Apart from looks, workers are regularly
asked when they arrived in their last collectives (answered by `Compared`). That shows laggards. It also shows whether
workers that report no steps are *at rest*, so that they may hang.
"""

from __future__ import annotations

import math
from collections import Counter

from msgspec import Struct

from coordinatord.core.rounds.effects import Look
from coordinatord.core.rounds.events import Compared, Looked
from coordinatord.core.rounds.queries.past_round import is_last_round
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.member import Member
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.state.wings import WatchingWing
from coordinatord.core.rounds.values import records
from coordinatord.core.rounds.values.due_times import NOW
from coordinatord.core.rounds.values.records import NodeDrained, Record, ReplicasDiverged
from coordinatord.core.rounds.values.root_cause import WorkerFailure
from coordinatord.core.rounds.values.time_ledger import Activity
from coordinatord.core.watching.divergence_watch import DivergenceWatch, divergence_failure, divergence_record
from coordinatord.core.watching.hang_watch import AnsweredLook, HangWatch
from coordinatord.core.watching.lateness import Lateness, present_pause
from coordinatord.core.watching.lateness_watch import LatenessWatch, describe_laggard, is_training, laggard_to_drain
from coordinatord.core.watching.look_comparison import (
    APART_S,
    REMEDY_IF_STOPPED,
    UNASKED,
    all_stopped,
    awaits_outside,
    compare,
    has_recorders,
    judge_pair,
    rests_on_stacks,
    why_inconclusive,
    why_unseen,
)
from coordinatord.core.watching.worker_sources import NoStacksError, worker_sources
from coordinatord.hints.hang_sentences import script_position
from coordinatord.hints.hang_verdict import HangVerdict, judge_unended, notice_of
from coordinatord.hints.match import timed_out
from coordinatord.hints.seen_worker import STOPPED, SeenWorker, longest_wait_s
from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.fields import CONSEQUENCES_MAX, LAST_LINES_MAX, LINE_MAX, SENTENCE_MAX
from coordinatord.protocol.log_messages import stderr_log
from coordinatord.protocol.messages import Failure, HangKind, Launcher
from coordinatord.protocol.stack_messages import unpack_stacks
from coordinatord.protocol.text import clip, counted

_LEFT_TO_TORCH = (
    "; a failed round would now end the job, so only torch's own timeout ends this "
    "(30 min with gloo, 10 min with NCCL, or timeout= of init_process_group); {remedy}"
)
"""The end of a notice about a round that goes on although it seems to hang, see `RunWatch._is_left_to_torch`."""

_REMEDY = "`nodeclient restart` begins another round now"
_REMEDY_IF_AGAIN = "see what that line waits for, and end the job by `nodeclient stop`"

UNSEEN = (
    "hangs cannot be detected, since no worker can be asked for its stack: "
    "start nodeclient with --preload torch, or have the script call workerlib.init()"
)

UNSEEN_AFTER_S = 180.0
"""How long workers have run before `UNSEEN` is said: until then, a script may import and load what it needs."""

STOPPING_SHARE = 0.25
"""How much of the time of a planned stop passes before workers that have not ended are looked at. Most have saved their
state by then. A node that leaves may have used half of that time before, and two looks need a second or two."""


class Culprit(Struct, frozen=True):
    """The worker that the others wait for."""

    failure: WorkerFailure
    """The hang as a failure of this worker."""
    position: str
    """The script's line at which it stands; empty if that is not known."""


class RecordedWait(Struct, frozen=True):
    """A wait for a worker, which is on record as a `BusyWorkerAwaited`."""

    notice: str
    is_left_to_torch: bool
    """Whether the notice says that only torch's own timeout can still end the wait."""


class RunWatch(WatchingWing):
    """Watches the workers of one run. `WatchingWing` says what its public attributes mean.

    A stall is recorded. Looks are not, so a restarted coordinator needs two new ones. One verdict has several readers:
    `hang` ends the round, `_awaited` is recorded, `suspect` tells since when workers stood still, `notice` is shown
    with the job's state, and `remark` is sent to its nodes.
    """

    def __init__(self, run: Run) -> None:
        """Begin without a look."""
        self._run = run
        self._hang, self.lateness_watch, self._divergence = HangWatch(), LatenessWatch(), DivergenceWatch()
        self._is_unseen = False
        self._culprit: Culprit | None = None
        """The first culprit of the last verdict, made with the verdict: later, in a stop, its node may be lost."""
        self._recorded_wait: RecordedWait | None = None
        """The last wait that was recorded; None if none was since workers last made progress."""
        self._is_at_rest = False
        """Whether workers that report no steps enter no collectives any more, so that the round may hang."""
        self._hung_at = Counter[str]()
        """How many rounds hung with the culprit at each position of the script."""

    def follow(self, record: Record) -> None:
        """Forget the looks when workers make progress or a round begins; count the hang that ended the last round."""
        if isinstance(record, records.RoundFormed):
            last = self._run.durable.report
            if last is not None and last.round == record.round - 1 and last.failure.hang is not None:
                self._hung_at[self._position] += 1
            self.lateness_watch.clear()
            self._divergence, self._is_unseen, self.rests_at = DivergenceWatch(), False, None
        if isinstance(record, records.RoundFormed | records.TrainingBegan | records.TrainingResumed):
            self._clear()
        elif isinstance(record, records.BusyWorkerAwaited):
            self._recorded_wait = RecordedWait(record.reason, self._is_left_to_torch())

    def _clear(self) -> None:
        """Forget all looks, but not the number of the last one: its answer may still come."""
        self._hang, self._culprit = HangWatch(self._hang.number), None
        self.notice, self._recorded_wait, self._is_at_rest = "", None, False

    @property
    def remark(self) -> str:
        """A warning to the users of nodes with running workers; empty if there is none."""
        recorded = self._recorded_wait
        return recorded.notice if recorded is not None and recorded.is_left_to_torch else self.unseen

    def next_at(self) -> float | None:
        """Return when to call `act`: at once if there is something to record, else when a look is due, if any."""
        return self._look_due() if self._to_record() is None else NOW

    def act(self, now: float) -> Record | Look | None:
        """Return what is to be recorded, or else a look to begin; None if a node cannot be asked."""
        record = self._to_record()
        return self._begin_look(now) if record is None else record

    def _to_record(self) -> Record | None:
        """Return the record of an awaited worker, or of workers that nobody can see, if it is not on record yet."""
        run = self._run
        if run.durable.state is not State.RUNNING:
            return None
        if self._awaited:
            return records.BusyWorkerAwaited(run.job, run.id, self._awaited, run.durable.round)
        if self.unseen and not run.durable.unseen_told:
            return records.WorkersUnseen(run.job, run.id, self.unseen, run.durable.round)
        return None

    def _look_due(self) -> float | None:
        """Return when to begin the next look, or to drop one without answers; None if no look is needed.

        Looks begin when training has stalled. Before the first step, they begin if workers report no steps and are at
        rest, or once `--hang-timeout` has passed since the workers were started. In the latter case the two looks are
        that far apart, too (`_looks_apart_s`), so a hang is proved after twice that time at the earliest. In a planned
        stop after steps, they begin after `STOPPING_SHARE` of its time, unless it is known who hangs. None begins while
        a node is disconnected, or while workers are in a section, which has its own limit. None begins at all if
        `--hang-timeout` is 0, or if torchrun has started the workers: a node can ask only its own workers for stacks.
        """
        run = self._run
        has_stalled = run.durable.ledger.activity is Activity.STALLED
        at_rest = self._is_at_rest and _is_judged_by_rest(run)
        is_stopping = run.durable.planned and run.durable.state is State.STOPPING
        is_slow_to_end = is_stopping and run.durable.stepped and self.suspect is None
        may_hang = has_stalled or at_rest or _is_timed_without_steps(run)
        if not is_slow_to_end and (run.durable.state is not State.RUNNING or not may_hang):
            return None
        if run.spec.hang_timeout_s == 0 or run.spec.launcher is Launcher.TORCHRUN:
            return None
        if any(member.session.id is None for member in run.roll.inside):
            return None  # until the node comes back or is lost: a look has to see all workers
        first_at = None
        if is_slow_to_end:
            first_at = run.durable.entered_at + STOPPING_SHARE * run.durable.stop_timeout_s
        elif _is_timed_without_steps(run):
            first_at = run.durable.entered_at + _looks_apart_s(run)
        return max((at for at in (self._hang.due_at, _section_end(run), first_at) if at is not None), default=NOW)

    def _begin_look(self, now: float) -> Look | None:
        """Begin a look at all workers of the round; return None and pause if a node cannot be asked."""
        number = self._hang.begin(now)
        try:
            sources = worker_sources(self._run)
        except NoStacksError as error:
            self.notice = str(error)
        else:
            unasked = next((source for source in sources if source.problem), None)
            if unasked is None:
                return Look(self._run.id, self._run.durable.round, number, sources)
            self.notice = f"{UNASKED}: {unasked.node}, {unasked.problem}"
        self._hang.pause(now)
        return None

    def record_answers(self, event: Looked | Compared, now: float) -> bool:
        """Record answers to the present look; return whether they show anything new for the run to act on."""
        if event.round != self._run.durable.round:
            return False
        match event:
            case Looked():
                return self._record_look(event, now)
            case Compared():
                return (  # each of them records something, so `or` would not do
                    self._record_unseen(event, now) | self._record_rest(event, now) | self._record_arrivals(event, now)
                )

    def _record_look(self, event: Looked, now: float) -> bool:
        """Record the first look of a pair, or judge the pair that the look completes; pause if no worker may hang.

        A section that ended since the first look of a pair makes that look worthless: its workers were not stuck.
        """
        watch, look = self._hang, AnsweredLook(event.workers, now)
        if not watch.is_pending or event.number != watch.number:
            return False
        section_end = _section_end(self._run)
        watch.stopped = all_stopped(look.workers)
        can_judge = self._look_due() is not None and (section_end is None or section_end <= now)
        if not can_judge or self._compare(look, look) is None:  # a look that shows no hang by itself is in no pair
            self.notice = why_unseen(look.workers) or why_inconclusive(look.workers)
            watch.pause(now)
        elif watch.first is None or self._run.progress.sections.ended_at > watch.first.at:
            watch.record_first(look, _looks_apart_s(self._run))
        elif not _are_heard_since(self._run, watch.first.at):
            watch.repeat_second(now)
        else:
            watch.judge(watch.first, look, self._compare)
            self.notice, self._culprit = "", None
            if watch.verdict is not None:
                self._name_culprit(watch.verdict, look)
        return True

    def _compare(self, first: AnsweredLook, second: AnsweredLook) -> HangVerdict | None:
        """Return the workers that all others wait for, or else those that have not ended in time; None if none are.

        The verdict on workers that others wait for needs all workers to be seen. So does the verdict on workers that
        have not ended, if the script reports no steps: they may never have answered a look, and may be training. If it
        does report steps, a worker that does not answer is most likely one whose Python ends.

        A verdict that rests on stacks needs steps and recorders, because equal stacks do not show that no worker has
        come to another collective in between.
        """
        verdict = compare(first.workers, second.workers)
        would_show_progress = self._run.durable.stepped and has_recorders(second.workers)
        if verdict is not None and rests_on_stacks(verdict, second.workers) and not would_show_progress:
            verdict = None
        if self._run.durable.state is State.STOPPING:  # a worker that computes, or waits for a disk, may save its state
            may_save = verdict is not None and (not verdict.is_hang or awaits_outside(verdict, second.workers))
            return None if may_save else verdict
        if verdict is not None or not self._is_end_overdue(second.at):
            return verdict
        is_unseen = why_unseen(first.workers) or why_unseen(second.workers)
        if is_unseen and not self._run.durable.stepped:
            return None
        return judge_pair(first.workers, second.workers, judge_unended)

    def _is_end_overdue(self, at: float) -> bool:
        """Whether `--hang-timeout` has passed since the last end of a worker without an error, or a later section."""
        run = self._run
        last_at = max(run.exits.last_at, run.progress.sections.ended_at)
        return run.exits.ended > 0 and at >= last_at + (run.spec.hang_timeout_s or math.inf)

    def _name_culprit(self, verdict: HangVerdict, look: AnsweredLook) -> None:
        culprit = next(worker for worker in look.workers if worker.rank == verdict.ranks[0])
        self.notice = notice_of(verdict, look.workers)
        position = "" if culprit.now is None else script_position(culprit.now)
        self._culprit = Culprit(_failure_of(self._run, verdict, culprit, look), position)
        if self._is_left_to_torch():
            end = self.hung_before + _LEFT_TO_TORCH.format(remedy=self._remedy(culprit))
            self.notice = clip(self.notice, SENTENCE_MAX - len(end)) + end

    def _remedy(self, culprit: SeenWorker) -> str:
        """Say what a person can do about a worker that others wait for and that may be slow."""
        if culprit.now is not None and culprit.now.state == STOPPED:
            return REMEDY_IF_STOPPED.format(pid=culprit.now.pid)
        return _REMEDY_IF_AGAIN if self.hung_before else _REMEDY

    def _record_unseen(self, event: Compared, now: float) -> bool:
        """Record whether no worker of the round shows itself, if all nodes have answered; return if this is new."""
        run, before = self._run, self._is_unseen
        is_late = now - run.durable.entered_at >= UNSEEN_AFTER_S and run.spec.hang_timeout_s != 0
        if any(node.workers for node in event.nodes):
            self._is_unseen = False
        elif is_late and {node.node for node in event.nodes} >= run.durable.order.keys():
            self._is_unseen = True
        has_changed = self._is_unseen is not before
        self.changes += has_changed
        return has_changed

    @property
    def unseen(self) -> str:
        """Why a hang would not be noticed so far; empty if one would, or it is not known."""
        run = self._run
        shows_itself = run.steps_announced or run.durable.stepped
        return UNSEEN if self._is_unseen and run.durable.state is State.RUNNING and not shows_itself else ""

    def _record_rest(self, event: Compared, now: float) -> bool:
        """Record whether workers that report no steps are at rest; return whether that has changed."""
        self.rests_at = None
        pause = present_pause(event.nodes) if _is_judged_by_rest(self._run) else None
        if pause is None:
            return False
        if not pause.is_rest and pause.lasts_s > pause.longest_s:
            self.rests_at = now + max(APART_S, pause.patience_s - pause.lasts_s)
        if pause.is_rest is self._is_at_rest:
            return False
        self._clear()
        self._is_at_rest = pause.is_rest
        return True

    def _record_arrivals(self, event: Compared, now: float) -> bool:
        """Record how late workers are in collectives, if the round trains; return whether a laggard is agreed on."""
        if not is_training(self._run):
            return False
        self.lateness_watch.record(event.nodes, self._run.progress.pace.usual_s, now)
        return self.lateness_watch.agreed_laggard is not None

    @property
    def stopped(self) -> str:
        """Says that a signal has stopped all workers of the round, by the last look; empty if it has not."""
        return self._hang.stopped

    @property
    def suspect(self) -> WorkerFailure | None:
        """The culprit as a failure, whether or not the round is ended for it; None if it may be at work."""
        verdict = self._hang.verdict
        is_at_fault = verdict is not None and (verdict.is_hang or self._is_hung())
        return self._culprit.failure if self._culprit is not None and is_at_fault else None

    @property
    def hang(self) -> WorkerFailure | None:
        """The culprit as the failure that the round is charged for; None if the round does not hang."""
        return self._culprit.failure if self._culprit is not None and self._is_hung() else None

    @property
    def _position(self) -> str:
        return "" if self._culprit is None else self._culprit.position

    @property
    def hung_before(self) -> str:
        """How many earlier rounds hung at this place, as the end of a sentence; empty if none did.

        A coordinator that was started again knows of none.
        """
        rounds = self._hung_at[self._position] if self._position else 0
        return f"; {counted(rounds, 'earlier round')} hung at the same place" if rounds else ""

    @property
    def _awaited(self) -> str:
        """What `BusyWorkerAwaited` is to record: the notice of a worker that others wait for in a round that goes on.

        That worker computes, or it may hang and is left to torch. The notice is recorded once, and once more when the
        worker turns out to be left to torch: then it says what to do. Empty if there is nothing new to record.
        """
        recorded = self._recorded_wait
        is_new = recorded is None or (self._is_left_to_torch() and not recorded.is_left_to_torch)
        return self.notice if self._hang.verdict is not None and is_new and not self._is_hung() else ""

    def _is_hung(self) -> bool:
        """Whether the round hangs: workers wait for one that will not come, or for longer than `--hang-timeout` allows.

        A worker that waits for something outside the job is tolerated for some minutes, but not once another worker has
        failed because it waited for torch's whole timeout. With `--hang-timeout`, looks begin only when so much time
        has passed since a step. So any worker that is awaited then is too slow, even if it computes. Before the first
        step, a worker that computes is let alone, since it may load or compile.
        """
        verdict = self._hang.verdict
        is_timed_out = bool(self._run.spec.hang_timeout_s) and self._run.durable.stepped
        first = self._run.evidence.first
        has_timed_out = first is not None and timed_out(first.failure)
        is_tolerated = (self._hang.is_tolerated or self._is_left_to_torch()) and not has_timed_out
        return verdict is not None and ((verdict.is_hang and not is_tolerated) or is_timed_out)

    def _is_left_to_torch(self) -> bool:
        """Whether a round that seems to hang goes on until torch's own timeout of collectives ends it.

        If no other round would follow, stopping the round ends the job, so the hang must be proved: a worker has ended,
        or waits in another collective than the others. A worker that stands still, or data that does not move, may only
        be slow, unless `--hang-timeout` says how slow is too slow.
        """
        run, verdict, look = self._run, self._hang.verdict, self._hang.judged
        if verdict is None or look is None:
            return False
        is_last = is_last_round(run, run.durable.ledger.total(look.at))
        return verdict.rests_on_pace and is_last and run.spec.hang_timeout_s is None

    def record_digests(self, member: Member) -> None:
        """Record the digests in a member's last report, which is about the present round."""
        assignment = member.durable.assignment
        if assignment is not None:
            digests = member.observed.digests[: member.offer.workers]
            self._divergence.record(assignment.first_rank, digests, assignment.world_size)

    @property
    def agreed(self) -> int | None:
        """The last step of the round after which all ranks had the same state; None if none is known."""
        return self._divergence.agreed

    @property
    def divergence(self) -> ReplicasDiverged | None:
        """The record that ranks of the round have different states; None if none have, or it is recorded."""
        found = self._divergence.found
        return None if found is None or self._run.durable.divergence else divergence_record(self._run, found)

    def divergence_failure(self, now: float) -> WorkerFailure | None:
        """Return the divergence that is on record of the round, as a failure."""
        found = self._run.durable.divergence
        return None if found is None else divergence_failure(self._run, found, now)

    def late(self) -> tuple[str, str]:
        """Return the node that several comparisons in a row have found late, and how late; else two empty texts."""
        laggard, lateness = self.lateness_watch.agreed_laggard, self.lateness_watch.lateness
        if laggard is None or lateness is None:
            return "", ""
        return laggard.node, describe_laggard(laggard, lateness.step_s)

    def laggard_drain(self) -> NodeDrained | None:
        """Return the record that drains the node found late by several comparisons in a row; None if none was."""
        laggard, (_, late) = laggard_to_drain(self._run, self.lateness_watch), self.late()
        if laggard is None or not is_training(self._run):
            return None
        why = f"{laggard.node} drained from job {self._run.job} for its lateness (--drain-laggards): {late}"
        return NodeDrained(job="", run="", reason=clip(why, SENTENCE_MAX), node=laggard.node, only_job=self._run.job)


def _is_timed_without_steps(run: Run) -> bool:
    """Whether only the time between two looks can show that `--hang-timeout` has passed: no step was reported."""
    return not run.durable.stepped and bool(run.spec.hang_timeout_s)


def _is_judged_by_rest(run: Run) -> bool:
    """Whether only a lack of new collectives can show a hang: workers report no steps, and there is no time limit."""
    return run.durable.state is State.RUNNING and reports_no_steps(run) and run.spec.hang_timeout_s is None


def reports_no_steps(run: Run) -> bool:
    """Whether workers report no steps, as far as is known: they announced none, or the first one is overdue."""
    return not run.durable.stepped and (not run.steps_announced or run.durable.step_overdue)


def _looks_apart_s(run: Run) -> float:
    """Return the time between the two looks of a pair, in seconds.

    Reported steps show how long workers have stood still. Without steps only the looks show that, so they are
    `--hang-timeout` apart. Otherwise they are a heartbeat apart, in which all nodes are heard (`_are_heard_since`).
    """
    if _is_timed_without_steps(run):
        return run.spec.hang_timeout_s or 0.0
    return max(APART_S, run.roll.heartbeat_s)


def _are_heard_since(run: Run, at: float) -> bool:
    """Whether all nodes of the round have been heard since `at`, when the first of two looks was answered.

    A worker that stands still may be in a section. Only heartbeats show sections, and one from before the first look
    may be older than the section.
    """
    return all(member.lease.heard_at > at for member in run.roll.inside)


def _section_end(run: Run) -> float | None:
    """Return when the section of the workers ends at the latest; None if they are in none."""
    longest = run.progress.sections.longest
    return None if longest is None else longest.ends_at


def _failure_of(run: Run, verdict: HangVerdict, culprit: SeenWorker, look: AnsweredLook) -> WorkerFailure:
    """Return the hang as the failure of the first culprit: it failed when the others began to wait for it.

    If torch's flight recorder does not show that, it failed at the newest step, or when the last of the others ended.
    """
    ended_at, stepped_at = run.exits.last_at, run.progress.stepped_at
    quiet_s = look.at - max(ended_at, stepped_at or ended_at) if run.exits.ended else run.progress.idle_s
    age_s = longest_wait_s(look.workers) or quiet_s
    offer, place = run.members[culprit.node].offer, (run.id, run.durable.round, culprit.rank)
    has_several = len(verdict.ranks) > 1 and verdict.kind is not HangKind.NETWORK
    failure = Failure(
        rank=culprit.rank,
        local_rank=culprit.rank - run.durable.order[culprit.node].first_rank,
        exit_code=ExitCode.TIMED_OUT,
        pid=0 if culprit.now is None else culprit.now.pid,
        message=verdict.sentence,
        error="",
        last_lines=() if culprit.now is None else _frames(culprit.now.stacks),
        followers=(),
        age_s=age_s,
        log=stderr_log(offer.log_dir, *place),
        hang=verdict.kind,
        hang_ranks=verdict.ranks[:CONSEQUENCES_MAX] if has_several else (),
    )
    return WorkerFailure(culprit.node, offer.host, look.at - age_s, failure)


def _frames(stacks: bytes) -> tuple[str, ...]:
    threads = unpack_stacks(stacks)
    return tuple(clip(frame, LINE_MAX) for frame in threads[0][1][:LAST_LINES_MAX]) if threads else ()


def lateness_of(run: Run) -> Lateness | None:
    """Return how late the workers of a run are; None if that is not known, or while it does not train."""
    watch = run.watching
    return watch.lateness_watch.lateness if isinstance(watch, RunWatch) and is_training(run) else None
