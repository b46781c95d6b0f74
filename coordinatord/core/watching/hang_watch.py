"""The looks at the workers of one stall. Nothing of it is recorded: a coordinator that was started again looks anew."""

from __future__ import annotations

import math
from dataclasses import dataclass

from coordinatord.core.watching.look_comparison import ANSWERED_WITHIN_S, APART_S, PAUSE_MAX_S, PAUSE_S
from coordinatord.hints.hang_verdict import HangVerdict
from coordinatord.hints.seen_worker import SeenWorker

Look = tuple[SeenWorker, ...]


@dataclass(slots=True)
class HangWatch:
    """The looks at one stall."""

    pending: int = 0
    """The number of the look that is on its way; 0 if none is."""
    due_at: float = -math.inf
    """When the next look is due, or the one on its way is given up."""
    first: Look | None = None
    """The look that the next one is compared with; None if the next one is the first of two."""
    found: HangVerdict | None = None
    """The workers that hold up all others, by the last two looks; None if these have not shown any."""
    second: Look = ()
    """The later of these two."""
    notice: str = ""
    """What the last looks have shown where nothing is done about it; empty if nothing."""
    at_rest: bool = False
    """Whether no worker comes to a collective any more, in a round whose workers report no steps."""
    is_tolerated: bool = False
    """Whether the worker that holds up all others waits for something outside the job, and not for too long."""
    still: Look = ()
    """The earliest look since which that worker has stood still."""
    still_at: float = 0.0
    """When that look was taken in."""
    first_at: float = 0.0
    """When `first` was taken in."""
    noted: bool = False
    """Whether it is on record that the others wait for a worker that computes."""
    remark: str = ""
    """What users are warned of: no restart is left, and torch's own timeout is to end the round. Empty if nothing."""
    _numbers: int = 0
    _pause_s: float = PAUSE_S

    def begin(self, now: float) -> int:
        """Begin a look; return its number. An earlier one that is still on its way is given up."""
        if self.pending:
            self.give_up(now)
        self._numbers += 1
        self.pending, self.due_at = self._numbers, now + ANSWERED_WITHIN_S
        return self.pending

    def keep(self, look: Look, now: float, apart_s: float) -> None:
        """Keep the first of two looks; the other one comes so many seconds later."""
        self.pending, self.first, self.first_at, self.due_at = 0, look, now, now + apart_s

    def look_again(self, now: float) -> None:
        """Have a later look compared with the first: it is too early to judge by this one."""
        self.pending, self.due_at = 0, now + APART_S

    def give_up(self, now: float) -> None:
        """Forget both looks, and wait before the next two."""
        self.pending, self.first, self.due_at = 0, None, now + self._pause_s
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)

    def clear(self) -> None:
        """Forget the stall: workers get on again, or their round is over. Answers to an old look no longer count."""
        self.pending, self.first, self.found, self.second = 0, None, None, ()
        self.notice, self.at_rest, self.noted, self.remark = "", False, False, ""
        self.is_tolerated, self.still = False, ()
        self.due_at, self._pause_s = -math.inf, PAUSE_S
