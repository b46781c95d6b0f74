"""Invariants of a run's ledger as a book: it adds up, no sum shrinks, and each activity fits the state.

They are checked when records with sums are decided, and for the status whenever all is durable. `time_attribution`
checks whether the activities agree with what happened in the world.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from coordinatord.core.journal import Decided
from coordinatord.core.machine import Coordinator
from coordinatord.core.rounds.events import Event, Reported
from coordinatord.core.rounds.queries.time_attribution import spent
from coordinatord.core.rounds.state.durable import State
from coordinatord.core.rounds.state.run import Run
from coordinatord.core.rounds.values.records import (
    FirstStepOverdue,
    NodeLost,
    NodesHeard,
    NodesSilent,
    Record,
    RoundEnded,
    RoundFormed,
    RoundStarted,
    RoundStopped,
    RunEnded,
    RunOpened,
    TrainingBegan,
    TrainingCaughtUp,
    TrainingResumed,
    TrainingStalled,
)
from coordinatord.core.rounds.values.round_history import rounds_of
from coordinatord.core.rounds.values.time_ledger import Activity, Spent
from coordinatord.core.shown.job_view import job_view, rounds_view
from coordinatord.protocol.http.api import JobStatus, RoundStatus
from coordinatord.protocol.messages import Result
from coordinatord.server.driver import WRITE_WITHIN_S
from coordinatord.server.metrics.jobs import figures_of
from coordinatord.server.metrics.rounds import JobTally
from tests.sim.invariants.laws import WHOLE_EVERY, Facts, Laws
from tests.sim.workers import Round

if TYPE_CHECKING:  # the world imports its invariants
    from tests.sim.host import Host

EXACT_S = 1e-6
"""Sums of floats differ by less."""

SHOWN_S = 0.004
"""The tolerance of the status, which rounds each activity to milliseconds."""

_GOES_TO: dict[type[Record], set[Activity]] = {
    RoundFormed: {Activity.STARTING},
    RoundStarted: {Activity.STARTING, Activity.RUNNING},
    TrainingBegan: {Activity.TRAINING, Activity.REDONE},
    FirstStepOverdue: {Activity.STARTING, Activity.RUNNING},
    TrainingCaughtUp: {Activity.TRAINING},
    TrainingStalled: {Activity.STALLED},
    TrainingResumed: {Activity.TRAINING, Activity.REDONE},
    NodesSilent: {Activity.SILENT},
    NodesHeard: {Activity.STARTING, Activity.RUNNING, Activity.TRAINING, Activity.REDONE},
}
"""The activities to which the time after a record of a round goes at first."""

_KNOWN_BY: dict[type[Record], set[Activity]] = {
    RoundStarted: set(),
    TrainingBegan: {Activity.STARTING, Activity.TRAINING, Activity.REDONE, Activity.DETECTING},
    FirstStepOverdue: {Activity.STARTING},
    TrainingCaughtUp: {Activity.TRAINING},
    TrainingStalled: {Activity.STALLED},
    TrainingResumed: {Activity.TRAINING, Activity.REDONE},
    NodesSilent: {Activity.SILENT},
    NodesHeard: set(),
    RoundStopped: {Activity.DETECTING, Activity.STALLED},
    RunEnded: {Activity.DETECTING, Activity.STALLED},
}
"""The activities to which the next record of the round may move that time."""

_FORMING = {Activity.WAITING, Activity.STARTING, Activity.RENDEZVOUS}
"""The activities of a run without a round, which then forms one."""

MAY_GROW: dict[type[Record], dict[type[Record], set[Activity]]] = {
    RunOpened: {RoundFormed: _FORMING, RunEnded: {Activity.WAITING}},
    **{
        before: {
            after: (goes_to - ({Activity.RUNNING} if after is TrainingBegan else set())) | known
            for after, known in _KNOWN_BY.items()
        }
        for before, goes_to in _GOES_TO.items()
    },
    RoundStopped: {RoundEnded: {Activity.STOPPING}, RunEnded: {Activity.STOPPING}},
    RoundEnded: {RoundFormed: _FORMING, RunEnded: {Activity.WAITING}},
}
"""The activities to which the time between two records may have gone."""

Accounted = (
    RoundFormed
    | RoundStarted
    | TrainingBegan
    | FirstStepOverdue
    | TrainingCaughtUp
    | TrainingStalled
    | TrainingResumed
    | NodesSilent
    | NodesHeard
    | RoundStopped
    | RoundEnded
    | RunEnded
)


@dataclass(slots=True)
class Page:
    """The sums in the last record of a run, and when that was made."""

    kind: type[Record]
    round: int
    """The last round that was formed."""
    spent: Spent
    life: int
    clock: float
    now: float
    time: float
    wall_offset: float


class LedgerLaws(Laws):
    """Watches the sums of one world."""

    def __init__(self, facts: Facts, judge_spent: Callable[[Page | None, Accounted], None]) -> None:
        """Begin; `judge_spent` checks the sums of a record by what happened since the page before it."""
        super().__init__(facts)
        self._judge_spent = judge_spent
        self._pages: dict[str, Page] = {}
        """The pages by run."""
        self._durable_pages: dict[str, Page] = {}
        self._written: deque[Page] = deque()
        """The pages that are decided and not durable yet."""
        self.odd_s: dict[str, float] = {}
        """The error in the time of each run by clocks that were set while there was no coordinator."""
        self.replaces = False
        """Whether a node was replaced in this decision: what broke the round before may not be known yet."""
        self.silent: set[Round] = set()
        """Rounds of which all nodes were silent at some time."""
        self._heard_at = 0.0
        """When a member of a live run last reported."""
        self._unheard_s = 0.0
        """The longest time since the last page in which none reported."""
        self._tally = JobTally()
        """The figures that the present coordinator has shown in metrics."""
        self._life_began = (0.0, 0.0, 0.0)
        """When the coordinator last started by its clock and by the queue, and the offset of its wall clock."""

    # The coordinator's lives

    def restored(self, machine: Coordinator, past: Sequence[Decided]) -> None:
        """Note that a coordinator has started."""
        daemon = self.world.daemon
        self._pages = dict(self._durable_pages)  # records that were not durable do not count
        self._written.clear()
        self._tally = JobTally()
        self._life_began = daemon.clock.read(), self.world.queue.time, daemon.wall_offset

    def set_back(self, records: Sequence[Record], now: float) -> None:
        """Note that the store holds these records alone."""
        self._durable_pages.clear()

    def note_event(self, event: Event) -> None:
        """Note an event that the coordinator is about to handle."""
        sessions = self.world.daemon.machine._sessions
        run = sessions[event.session][0] if isinstance(event, Reported) and event.session in sessions else None
        if run is not None and not run.durable.state.ended:  # else the node only waits for its outcome
            now = self.world.queue.now
            self._heard_at, self._unheard_s = now, max(self._unheard_s, now - self._heard_at)
        if self.world.daemon.machine.store_error is not None:
            self._unheard_s = math.inf  # a report may be recorded later, or not at all

    # Records

    def decided(self, records: Sequence[Record]) -> None:
        """Check what was decided by the state of the world at this moment, durable or not."""
        lost = [record for record in records if isinstance(record, NodeLost)]
        self.replaces = any(record.reason.startswith("replaced by") for record in lost)
        self.silent |= {(record.run, record.round) for record in records if isinstance(record, NodesSilent)}
        for record in records:
            if isinstance(record, RunOpened):
                self._turn_page(record, Spent())
            elif isinstance(record, Accounted):
                assert record.spent is not None
                page = self._pages.get(record.run)
                if page is not None:
                    self._judge_sum(page, record)
                    self._judge_silence(page, record)
                    self._judge_causes(page, record, silent=bool(lost) or self._is_unheard(record.run, page.round))
                self._judge_spent(page, record)
                self._turn_page(record, record.spent)

    def durable(self, record: Record) -> None:
        """Note by which offset of the wall clock the record has its time."""
        if isinstance(record, RunOpened | Accounted):
            self.check(bool(self._written), "%s is durable a second time", record)
            page = self._written.popleft()
            page.wall_offset = self.world.daemon.stamped_with
            self._durable_pages[record.run] = page

    def _turn_page(self, record: Record, spent: Spent) -> None:
        queue, daemon = self.world.queue, self.world.daemon
        before = self._pages.get(record.run)
        number = getattr(record, "round", 0 if before is None else before.round)
        page = Page(
            kind=type(record),
            round=number,
            spent=spent,
            life=daemon.life,
            clock=daemon.clock.read(),
            now=queue.now,
            time=queue.time,
            wall_offset=daemon.wall_offset,
        )
        self._pages[record.run] = page
        self._written.append(page)
        self._unheard_s = 0.0

    def _judge_silence(self, page: Page, record: Accounted) -> None:
        """Check that no time counts as silent in which a member was heard."""
        assert record.spent is not None
        silent_s = record.spent.silent - page.spent.silent
        if page.life == self.world.daemon.life:
            unheard_s = max(self._unheard_s, self.world.queue.now - self._heard_at)
            most = unheard_s * (1 + self.world.scenario.skew) + EXACT_S
            self.check(silent_s <= most, "%s has %.3f s of silence, of %.3f", record, silent_s, most)

    def _judge_sum(self, page: Page, record: Accounted) -> None:
        """Check that all time since the last record is counted, to the microsecond while the coordinator lives."""
        assert record.spent is not None
        daemon, took = self.world.daemon, record.spent.total - page.spent.total
        clock = daemon.clock.read()
        if page.life == daemon.life:
            self.check(abs(took - (clock - page.clock)) < EXACT_S, "%s has %.6f s, %s", record, took, page)
            return
        started, at, offset = self._life_began
        away = max(0.0, at - page.time + offset - page.wall_offset)
        slack = WRITE_WITHIN_S + 0.5 + 2 * self.world.scenario.skew * (self.world.queue.time - page.time)
        expected = away + clock - started
        self.odd_s[record.run] = self.odd_s.get(record.run, 0.0) + abs(took - (self.world.queue.now - page.now))
        self.check(abs(took - expected) < slack, "%s has %.3f s, and %.3f s passed", record, took, expected)

    def _is_unheard(self, run_id: str, number: int) -> bool:
        """Whether the round was silent, or a node of it has been gone for a grace or silent for a lease."""
        policy, now = self.world.scenario.policy, self.world.daemon.clock.read()
        lease_s = policy.heartbeats_per_lease * policy.heartbeat_s
        runs = self.world.daemon.machine.jobs.values()
        inside = (member for run in runs if run.id == run_id for member in run.roll.inside)
        return (run_id, number) in self.silent or any(
            now - member.lived_at >= (policy.reconnect_grace_s if member.session.id is None else lease_s)
            for member in inside
        )

    def _judge_causes(self, page: Page, record: Accounted, *, silent: bool) -> None:
        """Check that no second is taken from an activity again, and that each activity fits the state of the run."""
        assert record.spent is not None
        may_grow = MAY_GROW[page.kind].get(type(record), set())
        planned = isinstance(record, RoundStopped) and record.planned and not silent
        well = isinstance(record, RunEnded) and record.outcome.result is Result.SUCCEEDED
        for activity, seconds in record.spent.by_activity().items():
            before = page.spent.by_activity()[activity]
            self.check(seconds >= before, "%s has less time for %s than before: %.6f s", record, activity, before)
            grows = seconds - before > EXACT_S
            self.check(not grows or activity in may_grow, "%s has %s after %s", record, activity, page.kind.KIND)
            self.check(
                not (grows and activity is Activity.DETECTING and (planned or well)),
                "%s was detected, and on purpose",
                record,
            )

    # The status

    def settled(self, machine: Coordinator) -> None:
        """Check the status."""
        now = self.world.daemon.clock.read()
        for run in machine.jobs.values():
            if not self.facts.leaves_out(machine):
                self._judge_status(run, job_view(run, now, machine.store_error), now)
            if run.durable.state.ended or self.facts.commits % WHOLE_EVERY == 0:
                rounds = rounds_of(self.world.daemon.disk.rounds(run.job, run.id))
                same = run.durable.state.ended or rounds == run.durable.rounds
                self.check(same, "the store has other rounds of %s: %s", run.id, list(rounds))
                self._judge_timeline(run, rounds_view(run, rounds, now))
            self._judge_metrics(run, now)

    def _judge_status(self, run: Run, view: JobStatus, now: float) -> None:
        """Check that the status shows exactly the seconds that have passed."""
        seconds = asdict(view.ledger.seconds)
        least = min(seconds.values())
        self.check(least >= 0.0, "%s s were spent for %s", least, run.id)
        total = view.ledger.total
        self.check(abs(sum(seconds.values()) - total) < EXACT_S, "%s do not add up to %s", seconds, total)
        self.check(total == view.opened_s, "%s s are accounted for since %s", total, view.opened_s)
        page = self._pages.get(run.id)
        if page is not None and page.life == self.world.daemon.life:
            passed = page.spent.total + (0.0 if run.durable.state.ended else now - page.clock)
            known = spent(run, now).total
            self.check(abs(known - passed) < EXACT_S, "%.6f s are known of %s, of %.6f", known, run.id, passed)
            self.check(abs(total - passed) < SHOWN_S, "%.3f s are shown of %s, of %.3f", total, run.id, passed)

    def _judge_metrics(self, run: Run, now: float) -> None:
        """Check that metrics never fall within a run, and have exactly the seconds that have passed."""
        before = self._tally.shown if self._tally.shown_run == run.id else {}
        figures_of(run, self._tally, now)
        figures = self._tally.shown
        fell = [activity for activity, seconds in before.items() if figures[activity] < seconds]
        self.check(not fell, "metrics of %s go back: %s", run.id, fell)
        shown, passed = sum(figures.values()), spent(run, now).total
        self.check(abs(shown - passed) < EXACT_S, "metrics of %s have %.6f s, of %.6f", run.id, shown, passed)

    def _judge_timeline(self, run: Run, rounds: Sequence[RoundStatus]) -> None:
        took = [sum(asdict(round_.seconds).values()) for round_ in rounds]
        self.check(all(seconds >= 0.0 for seconds in took), "rounds took %s s", took)
        numbers = [round_.round for round_ in rounds]
        self.check(numbers == sorted(set(numbers)), "rounds are shown as %s", numbers)
        for round_ in rounds:
            ages = [getattr(round_, name) for name in ("formed_s", "running_s", "stopped_s", "ended_s")]
            known = [age for age in ages if age is not None]
            self.check(known == sorted(known, reverse=True), "round %s is out of order: %s", round_.round, ages)
        if rounds:
            on = run.durable.state in {State.STARTING, State.RUNNING, State.STOPPING}
            self.check((rounds[-1].ended is None) == on, "round %s is shown as %s", run.durable.round, rounds[-1])


def are_so_many(number: int, hosts: Sequence[Host], is_so: Callable[[Host], bool]) -> bool:
    """Return whether `is_so` holds for at least so many hosts; call it no more often than needed."""
    others = len(hosts) - number
    for host in hosts:
        if others < 0:
            return False
        others -= not is_so(host)
    return others >= 0
