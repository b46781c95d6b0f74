"""The steps on the disk: which are known to be there, which is being written and by whom, and when to try again.

`write_plan` decides, and this is what it decides by. Nothing here is recorded: after a restart of the coordinator,
nodes report which steps are on the disk, and a new attempt begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from msgspec import Struct

from coordinatord.core.rounds.values.due_times import NOW
from coordinatord.protocol.kept_state import (
    ABORTED_MAX,
    KeptStep,
    PersistedStep,
    PersistReport,
    PersistState,
    WantedParts,
)

RETRY_S = 30.0
"""The pause in seconds after a failed attempt: a disk that is full or missing mostly stays so for longer."""

BACK_S = 1.0
"""The pause in seconds if a writer has lost its connection while nodes wait to leave. It is mostly back by then, and
every second may be the last one of a host that is taken away."""

FIRST_SCAN_S = 12.0
"""How long a restarted coordinator waits with the first write, in seconds. Nodes scan the disk every 10 s. Until then,
the disk may have a step that is newer than the one to write, and that only departed nodes had reported. If a scan takes
longer, `holdings` drops the write as soon as a node reports that step."""

STUCK_S = 60.0
"""An attempt fails if no node has written a byte for so many seconds. It is long because a busy file server may stand
still for a while, and finite because workers have one place less in memory to save in during an attempt."""


class StepWriter(Struct, frozen=True):
    """A node that writes a part of a step."""

    incarnation: int
    """The process of the node. A younger one with the same node id has lost the memory, and so the step."""
    parts: tuple[WantedParts, ...]


@dataclass(slots=True)
class WriteAttempt:
    """One attempt to write a step. One that is over is forgotten."""

    number: int
    """A number that no other attempt of the run has, not even one before a restart of the coordinator."""
    at: KeptStep
    world_size: int
    shards: int
    writers: dict[str, StepWriter]
    """The nodes that write, by node id."""
    committer: str
    """The node that writes the manifest when all have written their parts."""
    began_at: float
    progressed_at: float
    """When any node last reported progress."""
    without: tuple[str, ...] = ()
    """The nodes that failed in the attempts just before this one, so that they write nothing now."""
    reports: dict[str, PersistReport] = field(default_factory=dict)
    """The last report of each writer about this attempt."""
    counts: Counter[PersistState] = field(default_factory=Counter)
    """How many of these reports have each state."""
    is_committing: bool = False
    """Whether all parts are on the disk, and the committer was asked to write the manifest. Before that, nodes write
    their parts from memory, and must not overwrite them there."""

    @property
    def small_states(self) -> int:
        """The number of ranks whose small state is written."""
        return sum(parts.ranks for writer in self.writers.values() for parts in writer.parts if parts.small)

    @property
    def written(self) -> bool:
        """Whether all nodes have written their parts."""
        return self.counts[PersistState.WRITTEN] + self.counts[PersistState.COMMITTED] == len(self.writers)

    @property
    def committed(self) -> bool:
        """Whether the step is whole."""
        report = self.reports.get(self.committer)
        return report is not None and report.state is PersistState.COMMITTED

    def record(self, node: str, report: PersistReport, now: float) -> None:
        """Record a node's report, unless it is about an earlier attempt, or repeats the last one."""
        last = self.reports.get(node)
        if node in self.writers and report.attempt == self.number and report != last:
            if last is not None:
                self.counts[last.state] -= 1
            self.counts[report.state] += 1
            self.reports[node] = report
            self.progressed_at = now

    @property
    def failed_nodes(self) -> tuple[str, ...]:
        """The nodes that have failed to write their parts: mostly one.

        While workers end, an attempt is not ended when the first one has failed, so more may follow.
        """
        if not self.counts[PersistState.FAILED]:
            return ()
        return tuple(node for node, report in self.reports.items() if report.state is PersistState.FAILED)


class FoundSteps:
    """The steps that the nodes of one run found on the disk.

    Each node scans the disk at its own times, and perhaps a directory of its own. So a node that has never found the
    newest step proves nothing, even if it is the last node that is left. That step is gone once a node that had found
    it no longer does, and no other member finds it. No node deletes it, so somebody else has, or it cannot be read.
    """

    def __init__(self) -> None:
        self.has_any = False
        """Whether any node has ever found a step on the disk, usable or not."""
        self.newest: KeptStep | None = None
        """The newest step of this run that is whole on the disk, as far as is known."""
        self.lost: KeptStep | None = None
        """The newest step that was there and is gone; None if there is none, or once a step as new is there."""
        self.departed: tuple[str, tuple[PersistedStep, ...]] | None = None
        """The departed node that had found the newest steps on the disk, and these steps: the next round must not begin
        anew where a node has seen steps to resume from. None once it is back, or another node finds a step as new."""
        self.agreed: PersistedStep | None = None
        """The newest step found in which ranks have the same state; None while they have never differed."""
        self._finders: set[str] = set()
        """The nodes whose last scan had `newest` as the newest step of this run. A node that is gone stays among them
        until it comes back and does not find the step, or looks at no disk."""
        self._is_missed = False
        """Whether a node that had found the newest step no longer does, and none has found it since."""

    def record(self, node: str, found: tuple[PersistedStep, ...], newest: KeptStep | None, unusable: str) -> None:
        """Record the steps that a node finds on the disk, newest first, and why it cannot use others.

        `newest` is the newest one of this run.
        """
        self.has_any |= bool(found or unusable)
        if self.departed is not None and (node == self.departed[0] or (found and self._is_as_new(found))):
            self.departed = None
        if newest is not None and self._is_newer(newest):
            self.replace_newest(newest, {node})
        elif newest == self.newest and node not in self._finders:
            self._finders.add(node)
            self._is_missed = False
        elif newest != self.newest and node in self._finders:
            self._finders.remove(node)
            self._is_missed = True

    def record_blind(self, node: str) -> None:
        """Record that a node looks at no disk, though its process before this one may have."""
        self._finders.discard(node)

    def record_written(self, at: KeptStep) -> None:
        """Record that a step of this run was made whole; it may be that no node has found it yet."""
        if self._is_newer(at):
            self.replace_newest(at, ())

    def _is_newer(self, at: KeptStep) -> bool:
        return self.newest is None or at > self.newest

    def record_departure(self, node: str, found: tuple[PersistedStep, ...]) -> None:
        """Record that a node is gone, and the steps that it had found on the disk."""
        if found and (self.departed is None or self._is_as_new(found)):
            self.departed = node, found

    def _is_as_new(self, found: tuple[PersistedStep, ...]) -> bool:
        return self.departed is not None and found[0].serial >= self.departed[1][0].serial

    def is_newest_gone(self, members: Collection[str]) -> bool:
        """Whether the newest step is gone, given the members of the run."""
        return self._is_missed and not any(node in members for node in self._finders)

    def replace_newest(self, newest: KeptStep | None, finders: Collection[str]) -> None:
        """Record another newest step, and the nodes that find it."""
        self.newest, self._finders, self._is_missed = newest, {*finders}, False
        if self.lost is not None and newest is not None and newest >= self.lost:
            self.lost = None


class Persisting:
    """The steps of one run on the disk, and the write of the next one.

    Other modules set some attributes: `holdings` sets `every_s` from reports, `disk_steps` sets `wanted` when a step is
    gone. `RunKeeping` sets others when a round begins or ends, a write is given up or the coordinator was restarted.
    """

    def __init__(self) -> None:
        self.attempt: WriteAttempt | None = None
        """The attempt in progress, if any."""
        self.last_number = 0
        """The number of the last attempt."""
        self.aborted: tuple[int, ...] = ()
        """The numbers of the last attempts that ended before any node was asked to commit; none from before the last
        success. Their steps never become whole, so nodes may delete their files."""
        self.every_s: float | None = None
        """The shortest interval of writes that a node asked for, in seconds; None if no node may write."""
        self.since: float | None = None
        """When a step was last written, or else when the first round was formed; None before that. `LONG_AGO` after a
        restart, since a write may be overdue."""
        self.retry_at = NOW
        """When the next attempt may begin; `NOW` unless the last one failed, or the coordinator was restarted."""
        self.wanted = False
        """Whether to write the newest step at once: a round was ended on purpose, or a step on the disk is gone."""
        self.ends_at: float | None = None
        """When nodes that are about to leave stop waiting for the disk; None while none is about to leave."""
        self.problem = ""
        """Why the last attempt failed; empty if it did not."""
        self.failed_at: KeptStep | None = None
        """The newest step that could not be written. A node that has left since then may have taken it along, so a run
        that ends names it as lost."""
        self.found = FoundSteps()

    @property
    def is_committing(self) -> bool:
        """Whether a step is being made whole. Its committer may be deleting an older one right now."""
        return self.attempt is not None and self.attempt.is_committing

    @property
    def pinned(self) -> KeptStep | None:
        """The step that memory must not overwrite before it is written; None if none is being written."""
        return self.attempt.at if self.attempt is not None and not self.attempt.is_committing else None

    def begin(self, attempt: WriteAttempt) -> None:
        """Begin an attempt."""
        assert self.attempt is None  # noqa: S101 - see `write_plan.may_write_at`
        self.attempt, self.last_number = attempt, attempt.number

    def succeed(self, now: float) -> None:
        """Record the step of the attempt as whole on the disk."""
        assert self.attempt is not None  # noqa: S101 - its report says so
        self.found.record_written(self.attempt.at)
        self.attempt, self.since = None, now
        self.wanted, self.problem, self.failed_at = False, "", None
        self.aborted = ()  # the committer has deleted their files
        self.retry_at, self.ends_at = NOW, None  # departing nodes get the whole time again for a newer step

    def fail(self, why: str, now: float, at: KeptStep | None = None, pause_s: float = RETRY_S) -> None:
        """Record that the attempt to write the step `at` has failed; the next one begins after a pause."""
        self.drop()
        self.problem, self.retry_at = why, now + pause_s
        self.failed_at = max((step for step in (self.failed_at, at) if step is not None), default=None)

    def drop(self) -> None:
        """End the attempt, if any, without a whole step.

        It counts as aborted only before its commit: after that, the committer may still write the manifest.
        """
        if self.attempt is not None and not self.attempt.is_committing:
            self.aborted = (*self.aborted, self.attempt.number)[-ABORTED_MAX:]
        self.attempt = None

    def record_end(self, now: float, longest_s: float, *, ends: bool) -> None:
        """Record whether nodes are about to leave (`ends`), which then wait for the disk `longest_s` at most.

        The first call with `ends` also ends the pause before the next attempt.
        """
        if not ends:
            self.ends_at = None
        elif self.ends_at is None:
            self.ends_at, self.retry_at = now + longest_s, NOW
