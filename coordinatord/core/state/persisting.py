"""How the write of a step to the disk goes. Nothing of it is recorded: only this life of the daemon knows it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from coordinatord.protocol.frozen_class import frozen
from coordinatord.protocol.kept_parts import KeptStep, WantedParts
from coordinatord.protocol.persisted_state import PersistedStep, PersistReport, PersistState

RETRY_S = 30.0
"""The pause after an attempt that failed, in seconds: a disk that is full or missing stays so for a while."""

STUCK_S = 60.0
"""An attempt is given up when no node has written a byte for so many seconds. A busy file server stands still for
seconds, and workers have one place less to save in while an attempt is on."""


@frozen
class StepWriter:
    """A node that writes a part of a step."""

    incarnation: int
    """The process that writes. A younger one with the same node id keeps nothing of the step."""
    parts: tuple[WantedParts, ...]


@dataclass(slots=True)
class PersistWork:
    """One attempt to write a step."""

    attempt: int
    """No other attempt of the run has this number, also none that another life of the daemon began."""
    at: KeptStep
    world_size: int
    shards: int
    writers: dict[str, StepWriter]
    """The nodes that write, by node id."""
    committer: str
    """The node that makes the step whole when all have written."""
    began_at: float
    moved_at: float
    """When any node has last written something."""
    reports: dict[str, PersistReport] = field(default_factory=dict)
    committing: bool = False
    """All have written, so the committer was told to make the step whole."""

    @property
    def small_states(self) -> int:
        """How many ranks have their small state written."""
        return sum(parts.ranks for writer in self.writers.values() for parts in writer.parts if parts.small)

    @property
    def written(self) -> bool:
        """Whether all nodes have written their parts."""
        done = {PersistState.WRITTEN, PersistState.COMMITTED}
        return all(node in self.reports and self.reports[node].state in done for node in self.writers)

    @property
    def committed(self) -> bool:
        """Whether the step is whole."""
        report = self.reports.get(self.committer)
        return report is not None and report.state is PersistState.COMMITTED

    def note(self, node: str, report: PersistReport, now: float) -> None:
        """Take in how far a node has come; what it says of an earlier attempt does not count."""
        if node in self.writers and report.attempt == self.attempt and report != self.reports.get(node):
            self.reports[node] = report
            self.moved_at = now

    @property
    def failed(self) -> tuple[str, str] | None:
        """The first node that has failed to write its part, and why; None if none has."""
        bad = ((node, report.problem) for node, report in self.reports.items() if report.state is PersistState.FAILED)
        return next(bad, None)


class Persisting:
    """The disk's side of a run."""

    def __init__(self) -> None:
        self.work: PersistWork | None = None
        self.attempts = 0
        """The number of the last attempt."""
        self.every_s: float | None = None
        """The time between two steps, in seconds, the least that a node asked for; None if no node may write."""
        self.since = math.inf
        """When a step was last made whole, or else the first round was formed. A life of the daemon that takes up the
        run does not know that, so it has the next whole step written at once."""
        self.retry_at = -math.inf
        """When the next attempt may be made, after one that failed."""
        self.wanted = False
        """The newest step is to be on the disk now: a round was ended on purpose."""
        self.problem = ""
        """Why the last attempt failed; empty if it did not."""
        self.is_found = False
        """Some node has found a step on the disk, or what might be one."""
        self.missed: tuple[str, tuple[PersistedStep, ...]] | None = None
        """The last node that is gone and had found steps on the disk, and these steps. The nodes that are left have to
        find a step as new. Otherwise the training would begin anew as soon as that node has given up waiting."""
        self.step: KeptStep | None = None
        """The newest step of this run that is whole on the disk, as far as is known."""

    def note_found(self, node: str, found: tuple[PersistedStep, ...], unusable: str) -> None:
        """Take in what a node finds on the disk, the newest first, and why something there is of no use to it."""
        self.is_found |= bool(found or unusable)
        if self.missed is not None and (node == self.missed[0] or (found and self._is_as_new(found))):
            self.missed = None

    def miss(self, node: str, found: tuple[PersistedStep, ...]) -> None:
        """Note what a node had found that is gone now."""
        if found and (self.missed is None or self._is_as_new(found)):
            self.missed = node, found

    def _is_as_new(self, found: tuple[PersistedStep, ...]) -> bool:
        return self.missed is not None and found[0].serial >= self.missed[1][0].serial

    def succeed(self, now: float) -> None:
        """Note that the step is whole on the disk."""
        assert self.work is not None  # noqa: S101 - the caller has looked
        self.step, self.since = self.work.at, now
        self.work, self.wanted, self.problem = None, False, ""

    def give_up(self, why: str, now: float) -> None:
        """Note that the attempt has failed."""
        self.work, self.wanted = None, False
        self.problem, self.retry_at = why, now + RETRY_S
