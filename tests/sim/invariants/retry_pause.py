"""Invariants of the pause before a round that follows the same error, twice or more in a row.

The pause is computed anew from the records, by the queue's clock. Nothing is checked where something changed in
between: a node came or was left behind, another coordinator decides, or the settings changed.
"""

from __future__ import annotations

from collections.abc import Sequence

from coordinatord.core.rounds.events import AdminRequested, Event
from coordinatord.core.rounds.values.admin_requests import RestartJob
from coordinatord.core.rounds.values.records import (
    HostJudged,
    NodeJoined,
    NodeLeftBehind,
    Record,
    RoundEnded,
    RoundFormed,
    TrainingBegan,
)
from coordinatord.protocol.messages import Report
from tests.sim.invariants.laws import Facts, Laws
from tests.sim.invariants.root_cause import ROUGHLY

CLEARLY_SHORT = 0.8
"""The part of `repeat_within_s` in which a round clearly was short. Clocks differ, and so do the moments that they
measure from."""


class RetryPauseLaws(Laws):
    """Watches the rounds of one run after another."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._formed_at = 0.0
        self._ended_at = 0.0
        self._life = 0
        self._repeats = 0
        self._last: Report | None = None
        self._quiet = False
        """Whether nothing has happened since that calls for another try at once."""
        self._stepped = False
        self._behind: set[str] = set()
        """Nodes that were left behind: each may come back at any time."""

    def note_event(self, event: Event) -> None:
        """Note an event that the coordinator is about to handle: an operator's restart ends a pause."""
        if isinstance(event, AdminRequested) and isinstance(event.request, RestartJob):
            self._quiet = False

    def decided(self, records: Sequence[Record]) -> None:
        """Check that no round follows an error too early."""
        for record in records:
            self._judge(record)

    def _judge(self, record: Record) -> None:
        now, daemon = self.world.queue.now, self.world.daemon
        match record:
            case NodeJoined():
                self._behind.discard(record.node)
                self._quiet = False
            case NodeLeftBehind():
                self._behind.add(record.node)
                self._quiet = False
            case HostJudged() if record.quarantined:  # the next round may be without the host that ended this one
                self._quiet, self._last = False, None
            case TrainingBegan():
                self._stepped = True
            case RoundEnded():
                self._note_end(record, now)
                self._quiet &= self._life == daemon.life  # to a restarted coordinator, a spare is a newcomer
                self._ended_at, self._life = now, daemon.life
            case RoundFormed():
                early = self._early(now) if self._quiet and self._life == daemon.life else 0.0
                self._behind -= {ranks.node for ranks in record.nodes}
                self._formed_at, self._quiet, self._stepped = now, not self._behind, False
                self._life = daemon.life
                self.check(early <= 0, "a round follows the same error %.2f s too early", early)

    def _note_end(self, record: RoundEnded, now: float) -> None:
        last, self._last = self._last, record.report
        policy = self.world.scenario.policy
        # A restarted coordinator knows only by the wall clock how long ago that was.
        short = self._life == self.world.daemon.life and now - self._formed_at < CLEARLY_SHORT * policy.repeat_within_s
        again = last is not None and self._last is not None and _error(last) == _error(self._last)
        follows = last is not None and last.round == record.round - 1
        self._repeats = self._repeats + 1 if again and follows and short and not self._stepped else 0

    def _early(self, now: float) -> float:
        scenario = self.world.scenario
        pause = ROUGHLY * min(scenario.policy.pause_after(self._repeats), scenario.join_timeout_s)
        return pause - (now - self._ended_at)


def _error(report: Report) -> tuple[int, str, str]:
    failure = report.failure
    return failure.exit_code, failure.error, failure.message
