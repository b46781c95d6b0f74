"""The looks at a round that makes no progress, in pairs, and the verdict on the last pair: what `run_watch` remembers.

A look is a sample of every worker at one moment. One look cannot tell a hang from a training that is between two of its
collectives, and two in a row can.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec import Struct

from coordinatord.core.watching.look_comparison import APART_S, awaits_outside
from coordinatord.hints.hang_verdict import HangVerdict
from coordinatord.hints.seen_worker import SeenWorker

ANSWERED_WITHIN_S = 10.0
"""How many seconds a look waits for answers until it is given up: twice as long as the server waits for nodes."""

PAUSE_S = 10.0
"""The pause in seconds after two looks that have shown no hang. It doubles each time, up to `PAUSE_MAX_S`, because each
look may stop the Python of a worker for a twentieth of a second."""

PAUSE_MAX_S = 60.0
"""The longest such pause in seconds, so that a hang after a long evaluation is found within a minute or so."""

OUTSIDE_PATIENCE_S = 600.0
"""How many seconds a worker may wait for a disk, or for anything else outside the job. While it flushes a large file,
no counter of the process moves: 60 GB take ten minutes at 100 MB/s. A restart does not make a disk faster, and loses a
checkpoint that is only slow."""


class AnsweredLook(Struct, frozen=True):
    """The answers to one look."""

    workers: tuple[SeenWorker, ...]
    at: float
    """When they arrived."""


Compare = Callable[[AnsweredLook, AnsweredLook], HangVerdict | None]
"""Returns the culprits by two looks, the earlier one first; None if there are none."""


@dataclass(slots=True)
class HangWatch:
    """The looks at one stall. Two looks make a pair; after a pair there is a pause.

    `begin` begins either look. When its answers arrive, `record_first` is called for the first one. `judge` is called
    for the second one, or `repeat_second` if it came too early, and `pause` if there is nothing to judge.
    """

    number: int = 0
    """The number of the last look, which may be of an earlier stall: answers to older looks are ignored."""
    is_pending: bool = False
    """Whether the last look has no answer yet."""
    due_at: float | None = None
    """When the next look is due, or the pending one times out; None if a look may begin at once."""
    first: AnsweredLook | None = None
    """The first look of a pair whose second look is to come; None if the next look begins a pair."""
    verdict: HangVerdict | None = None
    """The workers that all others wait for, hung or busy, by the last pair; None if it shows none."""
    judged: AnsweredLook | None = None
    """The second look of that pair."""
    outside_since: AnsweredLook | None = None
    """The first look at the present wait for something outside the job; None if there is no such wait."""
    is_tolerated: bool = False
    """Whether there is such a wait, and it is shorter than `OUTSIDE_PATIENCE_S`: then `verdict` is no hang yet."""
    stopped: str = ""
    """Says that a signal has stopped all workers, by the last look; empty if it has not."""
    _pause_s: float = PAUSE_S

    def begin(self, now: float) -> int:
        """Begin a look and return its number. It replaces a look without answers; the first of the pair stays valid."""
        self.number += 1
        self.is_pending, self.due_at = True, now + ANSWERED_WITHIN_S
        return self.number

    def record_first(self, first: AnsweredLook, apart_s: float) -> None:
        """Record the first look of a pair; the second one is due `apart_s` seconds later."""
        self.is_pending, self.first, self.due_at = False, first, first.at + apart_s

    def repeat_second(self, now: float) -> None:
        """Drop the second look of a pair, which came before the next heartbeats, and have another one soon.

        Only heartbeats tell whether a section has begun, in which a worker may stand still without being hung.
        """
        self.is_pending, self.due_at = False, now + APART_S

    def judge(self, first: AnsweredLook, second: AnsweredLook, compare: Compare) -> None:
        """Judge a pair by a comparison of its looks, and pause before the next one."""
        self.verdict, self.judged = compare(first, second), second
        whole_wait = None if self.outside_since is None else compare(self.outside_since, second)
        if self.verdict is None or not awaits_outside(self.verdict, second.workers):
            self.outside_since = None
        elif whole_wait is None or (whole_wait.kind, whole_wait.ranks) != (self.verdict.kind, self.verdict.ranks):
            self.outside_since = first  # a new wait
        self.is_tolerated = self.outside_since is not None and second.at - self.outside_since.at < OUTSIDE_PATIENCE_S
        self.pause(second.at)

    def pause(self, now: float) -> None:
        """Drop the first look of a pair and the pending look, and pause before the next pair."""
        self.is_pending, self.first, self.due_at = False, None, now + self._pause_s
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)
