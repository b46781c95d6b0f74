"""The last rounds of a run: why each began and ended, and what its time was spent on.

All times are in seconds since the run was opened, as the ledger counts them, so that they agree with it to the last
digit and no clock that is set changes their order. `transitions/apply` makes it of records alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from coordinatord.core.values.records import RoundEnded, RoundStarted, RoundStopped, RunEnded
from coordinatord.core.values.time_ledger import Spent
from coordinatord.protocol.text import clip

ROUNDS_KEPT = 50
"""The store keeps as many, so a coordinator that starts again shows the same."""

REASON_MAX = 512
"""The length in characters: what fits into a few lines. The events and the log have the whole."""


@dataclass(slots=True)
class Round:
    """One round, with the time since the one before it ended."""

    number: int
    nodes: int
    workers: int
    formed: str
    """Why it was formed."""
    before: Spent
    """What the run had spent when the round before it ended."""
    formed_at: float
    running_at: float | None = None
    """When all its workers were started."""
    stopped: str | None = None
    stopped_at: float | None = None
    planned: bool = False
    ended: str | None = None
    """The verdict."""
    ended_at: float | None = None
    charged: bool = False
    after: Spent | None = None
    """What the run had spent when it ended; None while it is on."""


@dataclass(slots=True)
class RoundHistory:
    """The rounds of one run, oldest first."""

    _rounds: list[Round] = field(default_factory=list)
    _spent: Spent = field(default_factory=Spent)
    """What the run had spent when its last round ended."""

    def __iter__(self) -> Iterator[Round]:
        """Iterate over the rounds that are kept."""
        return iter(self._rounds)

    def form(self, number: int, nodes: int, workers: int, reason: str, spent: Spent) -> None:
        """Note a new round, and forget one that is too old."""
        oldest = number - ROUNDS_KEPT
        self._rounds = [one for one in self._rounds if one.number > oldest]
        self._rounds.append(Round(number, nodes, workers, clip(reason, REASON_MAX), self._spent, spent.total))

    def start(self, record: RoundStarted) -> None:
        """Note that all workers of the round are started."""
        if current := self.current:
            current.running_at = record.spent.total

    def stop(self, record: RoundStopped) -> None:
        """Note that the round is to end."""
        if current := self.current:
            current.stopped, current.stopped_at = clip(record.reason, REASON_MAX), record.spent.total
            current.planned = record.planned

    def end(self, record: RoundEnded) -> None:
        """Note that the round is over."""
        if current := self.current:
            current.number, current.charged = record.round, record.charged  # nodes may have known of a later number
        self._close(record)

    def end_all(self, record: RunEnded) -> None:
        """Note that the run is over, and with it the round that was on."""
        self._close(record)

    def _close(self, record: RoundEnded | RunEnded) -> None:
        if current := self.current:
            current.ended, current.ended_at = clip(record.reason, REASON_MAX), record.spent.total
            current.after = record.spent
        self._spent = record.spent

    @property
    def current(self) -> Round | None:
        """The round that is on; only the end of the last one may be kept of it."""
        return self._rounds[-1] if self._rounds and self._rounds[-1].after is None else None
