"""The life of one attempt of a node to write its part of a step to the disk.

    WRITING ──> WRITTEN ──> COMMITTING ──> COMMITTED
       └──────────────────────────┴──────> FAILED

Only the committer's attempt comes beyond WRITTEN. The coordinator may give up a step in any of these stages. Then the
attempt is over, and what its thread still does is not reported.

When a step has become whole on the disk, older ones are deleted there.
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
"""The state that is reported in each stage."""


class PersistAttempt:
    """One attempt to write what one order names."""

    def __init__(self, run: str, order: PersistOrder) -> None:
        """Begin to write a step of a run."""
        self.run = run
        self.name = str(order.attempt)
        """The name of the attempt in the names on the disk."""
        self.order = order
        """The last order for this attempt."""
        self.stage = Stage.WRITING
        self._bytes = self._bytes_before = 0
        """How many bytes are written by now, and how many were when the present stage began."""
        self._problem = ""
        """Why the attempt failed, if it did."""

    def serves(self, run: str, order: PersistOrder) -> bool:
        """Whether an order is for this attempt: it names the same files to write."""
        return self.run == run and _for_files(self.order) == _for_files(order)

    def record_order(self, order: PersistOrder) -> None:
        """Follow another order for this attempt."""
        assert self.serves(self.run, order)  # noqa: S101 - the caller has asked
        self.order = order

    def record_bytes(self, count: int) -> None:
        """Record how many bytes are checked and written by now in the present stage."""
        self._bytes = max(self._bytes, self._bytes_before + count)

    def record_written(self) -> None:
        """Record that all files of this node are on the disk."""
        self._go(Stage.WRITTEN, Stage.WRITING)

    def begin_commit(self) -> bool:
        """Begin to make the step whole if all is written and this node is the committer; return whether it begins."""
        begins = self.order.commit and self.stage is Stage.WRITTEN
        if begins:
            self._go(Stage.COMMITTING, Stage.WRITTEN)
            self._bytes_before = self._bytes
        return begins

    def record_committed(self) -> None:
        """Record that the step is whole."""
        self._go(Stage.COMMITTED, Stage.COMMITTING)

    def fail(self, why: str) -> None:
        """Record that the attempt has failed; `why` fits into a report."""
        self._go(Stage.FAILED, Stage.WRITING, Stage.COMMITTING)
        self._problem = why

    @property
    def report(self) -> PersistReport:
        """The report to the coordinator."""
        order = self.order
        return PersistReport(order.round, order.step, _REPORTED[self.stage], self._bytes, self._problem, order.attempt)

    def _go(self, stage: Stage, *before: Stage) -> None:
        assert self.stage in before, f"{self.stage} leads not to {stage}"  # noqa: S101 - a mistake of the caller
        self.stage = stage


def _for_files(order: PersistOrder) -> PersistOrder:
    """Return an order with only those fields that decide which files are written; the others may change later."""
    return replace(order, commit=False, in_use=None, small=0, aborted=())


class StepOnDisk(Struct, frozen=True):
    """A whole step of a job, as a node finds it on the disk."""

    serial: int
    """Counts the steps of a job over all of its runs: a later step has a higher number."""
    folder: str
    usable: bool
    """Whether this node knows of no reason why the step could not be read."""


def superfluous(steps: Collection[StepOnDisk], keep: int, in_use: int | None) -> frozenset[str]:
    """Return the folders of the steps to delete: those that are older than the newest `keep` usable ones.

    Steps that cannot be read do not count as kept: none of them can replace a step that proves damaged. `in_use` is the
    serial of the step that the workers resume from, which stays in any case; None if there is none.
    """
    newest = sorted((step.serial for step in steps if step.usable), reverse=True)[:keep]
    if len(newest) < keep:
        return frozenset()
    return frozenset(step.folder for step in steps if step.serial < newest[-1] and step.serial != in_use)
