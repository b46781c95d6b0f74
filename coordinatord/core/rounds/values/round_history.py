"""The last rounds of a run: why each was formed and ended, and what its time was spent on. The status shows them.

Times are in seconds since the run was opened, as in the ledger, so a clock that is set does not change their order. The
history follows only from records: `transitions/apply` adds them while a run is live, and `rounds_of` makes the history
of a run that has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from coordinatord.core.rounds.values.records import (
    Record,
    RoundEnded,
    RoundFormed,
    RoundRemembered,
    RoundStarted,
    RoundStopped,
    RunEnded,
)
from coordinatord.core.rounds.values.time_ledger import Spent
from coordinatord.protocol.messages import WorkerStarts
from coordinatord.protocol.text import clip

ROUNDS_RETAINED = 50
"""How many rounds of each run are kept, here and in the store. The last few explain restarts to a person. 50 rounds of
10,000 nodes are 60 MB."""

BRIEF_REASON_MAX = 512
"""The most characters of a reason here, a few lines, since all of these stay in memory. Events and log have it all."""

ROUND_RECORDS: tuple[type[Record], ...] = (RoundFormed, RoundStarted, RoundStopped, RoundEnded, RunEnded)
"""The stored kinds of records that concern rounds; a `RoundFormed` may be read as a `RoundRemembered`."""


@dataclass(slots=True)
class Round:
    """One round; its time begins at the end of the previous one."""

    number: int
    nodes: int
    workers: int
    formed: str
    """Why it was formed."""
    before: Spent
    """The time of the run up to the end of the previous round."""
    formed_at: float
    running_at: float | None = None
    """When all its workers were started."""
    begun: WorkerStarts | None = None
    """How its workers were started: in place, warm or cold; None if no node has said it."""
    stopped: str | None = None
    """Why it was stopped; None if it was not."""
    stopped_at: float | None = None
    planned: bool = False
    ended: str | None = None
    """The verdict."""
    ended_at: float | None = None
    charged: bool = False
    after: Spent | None = None
    """The time of the run up to the end of this round; None before that."""


@dataclass(slots=True)
class RoundHistory:
    """The rounds of one run, oldest first."""

    _rounds: list[Round] = field(default_factory=list)
    _spent: Spent = field(default_factory=Spent)
    """The time of the run up to the end of its last round."""

    def __iter__(self) -> Iterator[Round]:
        """Iterate over the rounds that are kept."""
        return iter(self._rounds)

    def follow(self, record: Record) -> None:
        """Bring the history up to date with a record; one that does not concern rounds changes nothing."""
        match record:
            case RoundFormed():
                self._form(record, len(record.nodes), sum(ranks.workers for ranks in record.nodes))
            case RoundRemembered():
                self._form(record, record.nodes, record.workers)
            case RoundStarted():
                if current := self.current:
                    current.running_at, current.begun = record.spent.total, record.begun
            case RoundStopped():
                if current := self.current:
                    current.stopped, current.stopped_at = clip(record.reason, BRIEF_REASON_MAX), record.spent.total
                    current.planned = record.planned
            case RoundEnded() | RunEnded():
                self._close(record)

    def _form(self, record: RoundFormed | RoundRemembered, nodes: int, workers: int) -> None:
        """Add a round, and drop those that are too old."""
        oldest = record.round - ROUNDS_RETAINED
        self._rounds = [round_ for round_ in self._rounds if round_.number > oldest]
        formed, at = clip(record.reason, BRIEF_REASON_MAX), record.spent.total
        self._rounds.append(Round(record.round, nodes, workers, formed, self._spent, at))

    def _close(self, record: RoundEnded | RunEnded) -> None:
        """End the current round, if any: a run may also end between two rounds."""
        if current := self.current:
            if isinstance(record, RoundEnded):
                # Its number has changed if nodes have reported a later round than those on record (`RoundsMissed`).
                current.number, current.charged = record.round, record.charged
            current.ended, current.ended_at = clip(record.reason, BRIEF_REASON_MAX), record.spent.total
            current.after = record.spent
        self._spent = record.spent

    @property
    def current(self) -> Round | None:
        """The round that has not ended; None if there is none."""
        return self._rounds[-1] if self._rounds and self._rounds[-1].after is None else None


def rounds_of(records: Iterable[Record]) -> RoundHistory:
    """Return the history of a run from its records, the oldest one first."""
    rounds = RoundHistory()
    for record in records:
        rounds.follow(record)
    return rounds
