"""The looks at one stall, and the verdict of the last two."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct

from coordinatord.core.watching.look_comparison import (
    ANSWERED_WITHIN_S,
    APART_S,
    OUTSIDE_PATIENCE_S,
    PAUSE_MAX_S,
    PAUSE_S,
    awaits_outside,
    compare,
    stands_since,
)
from coordinatord.hints.hang_verdict import HangVerdict
from coordinatord.hints.seen_worker import SeenWorker


class TakenLook(Struct, frozen=True):
    """The answers to one look."""

    workers: tuple[SeenWorker, ...]
    at: float
    """When they arrived."""


@dataclass(slots=True)
class HangWatch:
    """The looks at one stall."""

    pending: int = 0
    """The number of the unanswered look; 0 if there is none."""
    due_at: float | None = None
    """When the next look is due, or the pending one times out; None if a look may begin at once."""
    first: TakenLook | None = None
    """The look that the next one is compared with; None if the next one is the first of two."""
    found: HangVerdict | None = None
    """The workers that hold up all others, by the last two looks; None if these show none."""
    second: TakenLook | None = None
    """The later of these two."""
    still: TakenLook | None = None
    """The first look at the present wait for something outside the job; None if there is none."""
    is_tolerated: bool = False
    """Whether that wait is still shorter than `OUTSIDE_PATIENCE_S`."""
    at_rest: bool = False
    """Whether no worker comes to a collective any more, in a round whose workers report no steps."""
    _numbers: int = 0
    _pause_s: float = PAUSE_S

    def begin(self, now: float) -> int:
        """Begin a look; return its number. An earlier one that is still pending is given up."""
        if self.pending:
            self.give_up(now)
        self._numbers += 1
        self.pending, self.due_at = self._numbers, now + ANSWERED_WITHIN_S
        return self.pending

    def keep(self, look: TakenLook, apart_s: float) -> None:
        """Keep the first of two looks; the other one comes so many seconds later."""
        self.pending, self.first, self.due_at = 0, look, look.at + apart_s

    def look_again(self, now: float) -> None:
        """Drop this look, which came too early, and compare a later one with the first."""
        self.pending, self.due_at = 0, now + APART_S

    def judge(self, first: TakenLook, second: TakenLook) -> None:
        """Compare two looks, and pause before the next two."""
        self.found, self.second = compare(first.workers, second.workers), second
        if self.found is None or not awaits_outside(self.found, second.workers):
            self.still = None
        elif self.still is None or not stands_since(self.still.workers, self.found, second.workers):
            self.still = first
        self.is_tolerated = self.still is not None and second.at - self.still.at < OUTSIDE_PATIENCE_S
        self.give_up(second.at)

    def give_up(self, now: float) -> None:
        """Forget the first look and the pending one, and pause before the next two."""
        self.pending, self.first, self.due_at = 0, None, now + self._pause_s
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)

    def clear(self) -> None:
        """Forget the stall: workers get on again, or their round is over. Answers to an old look no longer count."""
        self.pending, self.first, self.found, self.second = 0, None, None, None
        self.still, self.is_tolerated, self.at_rest = None, False, False
        self.due_at, self._pause_s = None, PAUSE_S
