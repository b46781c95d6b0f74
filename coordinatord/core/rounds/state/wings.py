"""The words by which the kernel knows its two wings, for one run each.

The kernel decides whether a round is formed, stopped and ended. A wing only answers, and asks to be called at a time.
"""

from __future__ import annotations

from typing import Protocol

from coordinatord.core.rounds.effects import Look
from coordinatord.core.rounds.events import Compared, Looked
from coordinatord.core.rounds.values.records import NodeDrained, Record
from coordinatord.core.rounds.values.root_cause import WorkerFailure


class KeepingWing(Protocol):
    """The wing for training state that outlives workers."""


class WatchingWing(Protocol):
    """The wing that looks at workers. Each word says by itself what a wing answers that looks at none."""

    def follow(self, record: Record) -> None:
        """Take in a record of the run that has just taken effect: what workers did before it may count no more."""
        del record

    def take(self, event: Looked | Compared, now: float) -> bool:
        """Take in what workers have answered; return whether it counts, so that something may follow."""
        del event, now
        return False

    def next_at(self) -> float | None:
        """Return when to look at the workers, or `-inf` for at once; None unless something happens."""
        return None

    def look(self, now: float) -> Look | None:
        """Begin the look that is due; None if a node cannot be asked. Either way, the next one is due later."""
        del now
        return None

    def hang(self) -> WorkerFailure | None:
        """Return the failure that ends the round: a worker for which all others wait, and that will not come."""
        return None

    def awaited(self) -> str:
        """Say which worker the others wait for, if the round goes on and that is not on record; empty otherwise."""
        return ""

    def notice(self) -> str:
        """Say what the last looks have shown where nothing is done about it; empty if nothing."""
        return ""

    def remark(self) -> str:
        """Say what users of nodes at work are warned of; empty if of nothing. It changes only by records."""
        return ""

    def laggard(self) -> NodeDrained | None:
        """Return the drain of the node that is late, if the job wants that and can do without the node."""
        return None


class NoKeeping:
    """Keeps nothing: each round begins from nothing that is kept."""

    def __init__(self, run: object) -> None:
        """Need nothing of the run."""


class NoWatching(WatchingWing):
    """Looks at no worker."""

    def __init__(self, run: object) -> None:
        """Need nothing of the run."""
