"""The life of one attempt of a node to write its part of a step to the disk.

    WRITING ──> WRITTEN ──> COMMITTING ──> COMMITTED
       └──────────────────────────┴──────> FAILED

Only the node that the coordinator tells to make the step whole comes beyond WRITTEN. An attempt may be over in each of
these stages, since the coordinator wants the step no more. What a thread still does for it is reported to nobody then.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum, auto

from coordinatord.protocol.persisted_state import PersistOrder, PersistReport, PersistState


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
"""What the coordinator is told of each stage."""


class PersistAttempt:
    """One attempt to write what one order names."""

    def __init__(self, run: str, order: PersistOrder, alone: str = "") -> None:
        """Begin to write a step of a run; a node that does so `alone` gives the attempt a name that no other has."""
        self.run = run
        self.name = alone or str(order.attempt)
        """Which attempt at this step it is, in the names on the disk."""
        self.order = order
        """The order as it was told last."""
        self.stage = Stage.WRITING
        self._bytes = self._bytes_before = 0
        """What is written by now, and what was when the present stage began."""
        self._problem = ""

    def serves(self, run: str, order: PersistOrder) -> bool:
        """Whether an order is for the same attempt; what is to be done once all is written may have changed."""
        return self.run == run and _written_by(self.order) == _written_by(order)

    def note_order(self, order: PersistOrder) -> None:
        """Take in an order for the same attempt."""
        assert self.serves(self.run, order)  # noqa: S101 - the caller has asked
        self.order = order

    def note_bytes(self, count: int) -> None:
        """Note how many bytes are checked and written by now in the present stage."""
        self._bytes = max(self._bytes, self._bytes_before + count)

    def note_written(self) -> None:
        """Note that all files of this node are on the disk."""
        self._go(Stage.WRITTEN, Stage.WRITING)

    def begin_commit(self) -> bool:
        """Begin to make the step whole if this node is told to and has not begun; return whether it begins now."""
        begins = self.order.commit and self.stage is Stage.WRITTEN
        if begins:
            self._go(Stage.COMMITTING, Stage.WRITTEN)
            self._bytes_before = self._bytes
        return begins

    def note_committed(self) -> None:
        """Note that the step is whole."""
        self._go(Stage.COMMITTED, Stage.COMMITTING)

    def fail(self, why: str) -> None:
        """Note that this node can do no more for the step; `why` fits into a report."""
        self._go(Stage.FAILED, Stage.WRITING, Stage.COMMITTING)
        self._problem = why

    @property
    def report(self) -> PersistReport:
        """What the coordinator is to know of it."""
        order = self.order
        return PersistReport(order.round, order.step, _REPORTED[self.stage], self._bytes, self._problem, order.attempt)

    def _go(self, stage: Stage, *before: Stage) -> None:
        assert self.stage in before, f"{self.stage} leads not to {stage}"  # noqa: S101 - a mistake of the caller
        self.stage = stage


def _written_by(order: PersistOrder) -> PersistOrder:
    """Return what an order says of the files to write, without that which is told once they are written."""
    return replace(order, commit=False, in_use=None, small=0, in_vain=())
