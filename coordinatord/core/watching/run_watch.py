"""The wing for one run: it has workers looked at, and answers the kernel by what that shows."""

from __future__ import annotations

from coordinatord.core.rounds.effects import Look
from coordinatord.core.rounds.events import Compared, Looked
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.records import (
    BusyWorkerAwaited,
    NodeDrained,
    Record,
    RoundFormed,
    TrainingBegan,
    TrainingResumed,
)
from coordinatord.core.rounds.values.root_cause import WorkerFailure
from coordinatord.core.watching.hang_watch import HangWatch, TakenLook
from coordinatord.core.watching.hanging import (
    are_heard_since,
    failure_of,
    is_hung,
    is_judged_by_rest,
    is_left_to_torch,
    looks_apart_s,
    next_look,
    section_until,
)
from coordinatord.core.watching.lateness import Lateness, are_at_rest
from coordinatord.core.watching.lateness_watch import LatenessWatch, laggard_to_drain, sentence, trains
from coordinatord.core.watching.look_comparison import UNASKED, may_hang, why_inconclusive, why_unseen
from coordinatord.core.watching.stack_sources import NoStacksError, stack_sources
from coordinatord.hints.hang_verdict import notice_of
from coordinatord.protocol.fields import MESSAGE_MAX
from coordinatord.protocol.text import clip

_LEFT_TO_TORCH = "; no restart is left, so only torch's own timeout ends this"


class RunWatch:
    """Watches the workers of one run, see `WatchingWing`.

    Nothing of it is recorded: a coordinator that was started again looks anew.
    """

    def __init__(self, run: Run) -> None:
        """Begin without a look."""
        self._run = run
        self._hang, self._lateness = HangWatch(), LatenessWatch()
        self._notice = ""
        """What the last looks have shown where nothing is done about it; empty if nothing."""
        self._is_noted = False
        """Whether it is on record that the others wait for a worker."""
        self._remark = ""
        """What users are warned of: no restart is left, and torch's own timeout is to end the round. Empty if
        nothing."""

    def follow(self, record: Record) -> None:
        """Forget what was seen of workers that get on, or whose round is over."""
        if isinstance(record, RoundFormed):
            self._lateness.clear()
        if isinstance(record, RoundFormed | TrainingBegan | TrainingResumed):
            self._clear()
        elif isinstance(record, BusyWorkerAwaited):
            self._is_noted = True
            self._remark = record.reason if is_left_to_torch(self._run, self._hang.found) else ""

    def _clear(self) -> None:
        self._hang.clear()
        self._notice, self._is_noted, self._remark = "", False, ""

    def next_at(self) -> float | None:
        """Return when the next look is due, or the one on its way is given up."""
        return next_look(self._run, self._hang)

    def look(self, now: float) -> Look | None:
        """Have all workers of the round looked at, if all of them can be asked."""
        number = self._hang.begin(now)
        try:
            sources = stack_sources(self._run, (), brief=True)
        except NoStacksError as error:
            self._notice = str(error)
        else:
            unasked = next((source for source in sources if source.problem), None)
            if unasked is None:
                return Look(self._run.id, self._run.durable.round, number, sources)
            self._notice = f"{UNASKED}: {unasked.node}, {unasked.problem}"
        self._hang.give_up(now)
        return None

    def take(self, event: Looked | Compared, now: float) -> bool:
        """Take in answers; those to an old look, or about a round that is over, do not count."""
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
        section_end = section_until(self._run)
        in_section = section_end is not None and section_end > now
        if self.next_at() is None or in_section or not may_hang(look.workers):
            self._notice = why_unseen(look.workers) or why_inconclusive(look.workers)
            watch.give_up(now)
        elif watch.first is None or self._run.progress.sections.ended_at > watch.first.at:
            watch.keep(look, looks_apart_s(self._run))
        elif not are_heard_since(self._run, watch.first.at):
            watch.look_again(now)
        else:
            watch.judge(watch.first, look)
            self._notice = "" if watch.found is None else notice_of(watch.found, look.workers)
            if is_left_to_torch(self._run, watch.found):
                self._notice = clip(self._notice, MESSAGE_MAX - len(_LEFT_TO_TORCH)) + _LEFT_TO_TORCH
        return True

    def _take_rest(self, event: Compared) -> bool:
        """Take in whether workers that report no steps are at rest."""
        at_rest = are_at_rest(event.nodes) if is_judged_by_rest(self._run) else None
        if at_rest is None or at_rest is self._hang.at_rest:
            return False
        self._clear()
        self._hang.at_rest = at_rest
        return True

    def _take_arrivals(self, event: Compared, now: float) -> bool:
        """Take in when the workers of a round that trains have come to collectives."""
        if not trains(self._run):
            return False
        self._lateness.take_in(event.nodes, self._run.progress.usual_s, now)
        return True

    def hang(self) -> WorkerFailure | None:
        """Return the culprit as the failure that the round is charged for; None if the round does not hang."""
        found, look = self._hang.found, self._hang.second
        if found is None or look is None or not is_hung(self._run, self._hang):
            return None
        return failure_of(self._run, found, look)

    def awaited(self) -> str:
        """Describe the worker that the others wait for, which may be busy: again once it is left to torch."""
        found = self._hang.found
        is_new = not self._is_noted or (is_left_to_torch(self._run, found) and not self._remark)
        return self._notice if found is not None and is_new and not is_hung(self._run, self._hang) else ""

    def notice(self) -> str:
        """Return what the last looks have shown, such as why a worker cannot be seen."""
        return self._notice

    def remark(self) -> str:
        """Return the warning that only torch's own timeout ends a round that seems to hang."""
        return self._remark

    def laggard(self) -> NodeDrained | None:
        """Return the drain of the node that some looks in a row have shown to be late."""
        found, known = laggard_to_drain(self._run, self._lateness), self.lateness
        if found is None or known is None:
            return None
        why = f"{found.node} drained for its lateness (--drain-laggards): {sentence(known, found)}"
        return NodeDrained("", "", clip(why, MESSAGE_MAX), found.node)

    @property
    def lateness(self) -> Lateness | None:
        """How late workers are, by the last look; None while the job does not train, or if that is not known."""
        return self._lateness.known if trains(self._run) else None


def lateness_of(run: Run) -> Lateness | None:
    """Return how late the workers of a run are; None while it does not train, or if that is not known."""
    return run.watching.lateness if isinstance(run.watching, RunWatch) else None
