"""One attempt of a node to write its parts of a step to the disk, in stages, and which old steps it deletes there.

    WRITING ──> WRITTEN ──> COMMITTING ──> COMMITTED
       └──────────────────────────┴──────> FAILED

Each node writes the parts that the coordinator's order names. Only one node, the *committer*, goes beyond WRITTEN: once
all nodes have written, it makes the step whole, and then deletes older ones. The coordinator may give up a step in any
stage. Then `persister` drops the attempt, and does not report its thread's further progress.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum, auto

from msgspec import Struct
from msgspec.structs import replace

from coordinatord.protocol.kept_state import PersistOrder, PersistReport, PersistState


class Stage(Enum):
    """How far an attempt has come."""

    WRITING = auto()
    WRITTEN = auto()
    """All files of this node are on the disk."""
    COMMITTING = auto()
    """This node is making the step whole."""
    COMMITTED = auto()
    FAILED = auto()


_REPORTED = {
    Stage.WRITING: PersistState.WRITING,
    Stage.WRITTEN: PersistState.WRITTEN,
    Stage.COMMITTING: PersistState.WRITTEN,
    Stage.COMMITTED: PersistState.COMMITTED,
    Stage.FAILED: PersistState.FAILED,
}
"""The state that is reported in each stage. A step is whole only once it is COMMITTED."""


class PersistAttempt:
    """One attempt to carry out an order to write. The coordinator repeats the order, later with its `commit` set."""

    def __init__(self, run: str, order: PersistOrder) -> None:
        self.run = run
        self.order = order
        """The last order for this attempt."""
        self.stage = Stage.WRITING
        self._problem = ""
        """Why the attempt failed, if it did."""

    def is_for(self, run: str, order: PersistOrder) -> bool:
        """Whether this attempt is for an order: it writes the files that the order names."""
        return self.run == run and _files_of(self.order) == _files_of(order)

    def record_order(self, order: PersistOrder) -> None:
        """Follow another order for this attempt, unless it is an older one: a commit is never taken back."""
        assert self.is_for(self.run, order)  # noqa: S101 - the caller has checked
        if order.commit or not self.order.commit:
            self.order = order

    def record_written(self) -> None:
        """Record that all files of this node are on the disk."""
        self._go(Stage.WRITTEN, Stage.WRITING)

    def begin_commit(self) -> bool:
        """Begin to make the step whole if the order says so and all files are written; return whether it begins."""
        begins = self.order.commit and self.stage is Stage.WRITTEN
        if begins:
            self._go(Stage.COMMITTING, Stage.WRITTEN)
        return begins

    def record_committed(self) -> None:
        """Record that the step is whole."""
        self._go(Stage.COMMITTED, Stage.COMMITTING)

    def fail(self, why: str) -> None:
        """Record that the attempt has failed; `why` fits into a report."""
        self._go(Stage.FAILED, Stage.WRITING, Stage.COMMITTING)
        self._problem = why

    def report(self, done: int) -> PersistReport:
        """Return the state of the attempt for the coordinator; `done` is how many bytes were checked and written."""
        order = self.order
        return PersistReport(order.round, order.step, _REPORTED[self.stage], done, self._problem, order.attempt)

    def _go(self, stage: Stage, *before: Stage) -> None:
        assert self.stage in before, f"{self.stage} does not lead to {stage}"  # noqa: S101 - a mistake of the caller
        self.stage = stage


def _files_of(order: PersistOrder) -> PersistOrder:
    """Return an order without the fields that may change later: all others say which files are written."""
    return replace(order, commit=False, stays=(), small=0, aborted=())


class StepOnDisk(Struct, frozen=True):
    """A whole step of a job that a node has found on the disk."""

    serial: int
    """Counts the steps of a job over all of its runs: a later step has a higher number."""
    folder: str
    usable: bool
    """False if this node has failed to read the step, or if a newer attempt wrote the same step."""


def steps_to_delete(steps: Collection[StepOnDisk], keep: int, stays: Collection[int]) -> frozenset[str]:
    """Return the folders of the steps to delete: those older than the newest `keep` usable ones.

    Unusable steps do not count as kept, because they cannot replace a step that proves damaged. `stays` has the serials
    of steps that are never deleted.
    """
    newest = sorted((step.serial for step in steps if step.usable), reverse=True)[:keep]
    if len(newest) < keep:
        return frozenset()
    return frozenset(step.folder for step in steps if step.serial < newest[-1] and step.serial not in stays)
