"""The progress of writing steps to the disk: what is being written, by whom, what failed, and when to try again.

`write_plan` decides, and this is what it decides by. The life of one write is the table `WRITES`. Nothing here is
recorded: after a restart of the coordinator, nodes report which steps are on the disk, and a new attempt begins.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from msgspec import Struct

from coordinatord.core.keeping.found_steps import FoundSteps
from coordinatord.core.rounds.values.due_times import NOW
from coordinatord.protocol.errors import CompleteMap
from coordinatord.protocol.kept_state import (
    ABORTED_MAX,
    KeptStep,
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


class WriteState(StrEnum):
    """The progress of the write of a step."""

    NONE = "none"
    WRITING = "writing"
    """Nodes write their parts from memory, and must not overwrite them there."""
    COMMITTING = "committing"
    """All parts are on the disk, and the committer was asked to write the manifest. Memory may overwrite the step."""


class WriteEvent(StrEnum):
    """An event in the write of a step."""

    BEGUN = "begun"
    WRITTEN = "written"
    """All nodes have written their parts."""
    MADE_WHOLE = "made whole"
    FAILED = "failed"
    """A node could not write or is gone, no node makes progress, or no node could begin."""
    DROPPED = "dropped"
    """The step is no longer wanted."""


WRITES = CompleteMap[tuple[WriteState, WriteEvent], WriteState]("writes of a step to the disk")
WRITES |= {
    (WriteState.NONE, WriteEvent.BEGUN): WriteState.WRITING,
    (WriteState.WRITING, WriteEvent.WRITTEN): WriteState.COMMITTING,
    # Nodes commit only when asked to. Without this row, a node that commits unasked would seem to be a bug of ours.
    (WriteState.WRITING, WriteEvent.MADE_WHOLE): WriteState.NONE,
    (WriteState.COMMITTING, WriteEvent.MADE_WHOLE): WriteState.NONE,
}
WRITES |= {(state, event): WriteState.NONE for state in WriteState for event in (WriteEvent.FAILED, WriteEvent.DROPPED)}


class StepWriter(Struct, frozen=True):
    """A node that writes a part of a step."""

    incarnation: int
    """The process of the node. A younger one with the same node id has lost the memory, and so the step."""
    parts: tuple[WantedParts, ...]


@dataclass(slots=True)
class WriteAttempt:
    """One attempt to write a step."""

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
    state: WriteState = WriteState.WRITING
    """Never `NONE`: an attempt that is over is forgotten."""

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
    def state(self) -> WriteState:
        """The progress of the attempt, if any."""
        return WriteState.NONE if self.attempt is None else self.attempt.state

    @property
    def pinned(self) -> KeptStep | None:
        """The step that memory must not overwrite before it is written; None if none is being written."""
        return self.attempt.at if self.attempt is not None and self.attempt.state is WriteState.WRITING else None

    def begin(self, attempt: WriteAttempt) -> None:
        """Begin an attempt."""
        self._move(WriteEvent.BEGUN, attempt)
        self.last_number = attempt.number

    def commit(self) -> None:
        """Record that all parts are written, so that the committer is asked to write the manifest."""
        self._move(WriteEvent.WRITTEN, self.attempt)

    def succeed(self, now: float) -> None:
        """Record the step as whole on the disk."""
        if self.attempt is not None:
            self.found.record_written(self.attempt.at)
        self._move(WriteEvent.MADE_WHOLE)
        self.since = now
        self.wanted, self.problem, self.failed_at = False, "", None
        self.aborted = ()  # the committer has deleted their files
        self.retry_at, self.ends_at = NOW, None  # departing nodes get the whole time again for a newer step

    def fail(self, why: str, now: float, at: KeptStep | None = None, pause_s: float = RETRY_S) -> None:
        """Record that the attempt to write the step `at` has failed; the next one begins after a pause."""
        self._move(WriteEvent.FAILED)
        self.problem, self.retry_at = why, now + pause_s
        self.failed_at = max((step for step in (self.failed_at, at) if step is not None), default=None)

    def drop(self) -> None:
        """End the attempt, if any: its step is no longer wanted."""
        self._move(WriteEvent.DROPPED)

    def _move(self, event: WriteEvent, attempt: WriteAttempt | None = None) -> None:
        """Go to the next state, in which `attempt` is in progress. Raises `InternalError`.

        An attempt that ends in `WRITING` is recorded as aborted, because its step is not whole. An attempt that ends
        later is never aborted: the committer may still write the manifest.
        """
        state = WRITES[self.state, event]
        if self.attempt is not None and self.state is WriteState.WRITING and state is WriteState.NONE:
            self.aborted = (*self.aborted, self.attempt.number)[-ABORTED_MAX:]
        self.attempt = attempt
        if attempt is not None:
            attempt.state = state

    def record_end(self, now: float, longest_s: float, *, ends: bool) -> None:
        """Record whether nodes are about to leave (`ends`), which then wait for the disk `longest_s` at most.

        The first call with `ends` also ends the pause before the next attempt.
        """
        if not ends:
            self.ends_at = None
        elif self.ends_at is None:
            self.ends_at, self.retry_at = now + longest_s, NOW
