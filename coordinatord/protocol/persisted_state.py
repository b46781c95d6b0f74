"""What nodes report of training state on a disk that all of them see, and what they are to write there.

Several nodes write a step, each shard by one of them. When all have written, one of them writes the step's manifest:
without it the step counts for nothing, and with it the step is whole.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from coordinatord.protocol.fields import RANKS_MAX, Counter, Name, Seconds, Sentence, Step
from coordinatord.protocol.kept_parts import WANTED_MAX, KeptParts, KeptStep, Size, WantedParts
from coordinatord.protocol.schema import Strict

PERSISTED_MAX = 8
"""The most steps on the disk that a node names: the newest ones. One is enough to resume from, and a few more are a
choice if it proves to be damaged."""

PERSISTED_PARTS_MAX = 32
"""The most groups of parts of one such step. Ranks that have the same kinds of files share one, so three are usual."""

KEEP_STEPS_MAX = 1000
"""The most steps that a job may have on the disk: all of them are looked at when a node starts."""

IN_VAIN_MAX = 8
"""The most attempts in vain that an order names: the last ones. What older ones have left is deleted when a step
becomes whole."""

ATTEMPTS_MAX = 2**30
"""The highest number of an attempt that a node's report counts for: half of what the protocol can express."""

Serial = Annotated[int, Meta(ge=1, le=2**53 - 1)]
"""Numbers the steps of a job on the disk, over all of its runs: a later one has a higher number."""


class PersistOffer(Strict, frozen=True):
    """A node's directory for steps on a disk, as its user wants it used."""

    every_s: Seconds
    """How much time lies between two steps."""
    keep: Annotated[int, Meta(ge=1, le=KEEP_STEPS_MAX)]
    """How many steps are kept: the newest ones."""


class PersistedStep(Strict, frozen=True):
    """A step that is whole on the disk."""

    serial: Serial
    run: Name
    """The run that did the step."""
    parts: Annotated[tuple[KeptParts, ...], Meta(min_length=1, max_length=PERSISTED_PARTS_MAX)]
    """All of them are of one step."""

    @property
    def at(self) -> KeptStep:
        """The step, and its round in that run."""
        return self.parts[0].at


class PersistState(StrEnum):
    """How far a node has come with what it is to write."""

    WRITING = "writing"
    WRITTEN = "written"
    """All of its files are on the disk; the step is not whole yet."""
    COMMITTED = "committed"
    """It has written the manifest, so the step is whole."""
    FAILED = "failed"
    """The attempt has failed; a later one is made with the newest step of that time."""


class PersistReport(Strict, frozen=True):
    """What a node has done of an order to write a step."""

    round: Counter
    step: Step
    state: PersistState
    bytes: Size
    """How much is checked and written: while the number grows, nothing hangs."""
    problem: Sentence = ""
    attempt: Counter = 0
    """The number of the attempt, as of the order."""

    @property
    def at(self) -> KeptStep:
        """The step."""
        return KeptStep(self.round, self.step)


class PersistOrder(Strict, frozen=True):
    """What a node is to write of a step of the present run."""

    round: Counter
    step: Step
    world_size: Annotated[int, Meta(ge=1, le=RANKS_MAX)]
    shards: Annotated[int, Meta(ge=1, le=RANKS_MAX)]
    parts: Annotated[tuple[WantedParts, ...], Meta(max_length=WANTED_MAX)]
    commit: bool
    """All nodes have written their parts: it is to make the step whole."""
    in_use: Serial | None = None
    """A step that is not dropped now, though newer ones are there: the workers resume from it."""
    small: Annotated[int, Meta(ge=0, le=RANKS_MAX)] = 0
    """The number of ranks whose small state all nodes together write: the committer must find that of each."""
    attempt: Counter = 0
    """Numbers a run's attempts to write a step. By it, a node that has missed the end of the last one begins anew."""
    in_vain: Annotated[tuple[Counter, ...], Meta(max_length=IN_VAIN_MAX)] = ()
    """Attempts of the run that ended before their step was to be made whole. No node ever will, so what nodes have
    written in them is to be deleted before this attempt: they may have filled the disk."""

    @property
    def at(self) -> KeptStep:
        """The step."""
        return KeptStep(self.round, self.step)


class DiskStep(Strict, frozen=True):
    """A step on the disk by the names that it has there: the run that did it may be an earlier one."""

    run: Name
    round: Counter
