"""What nodes report of the training state that they keep, and what their workers are to resume from."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta

from coordinatord.protocol.fields import RANKS_MAX, Address, Counter, Name, Port, Seconds, Sentence, Step
from coordinatord.protocol.kept_parts import WANTED_MAX, Digest, KeptParts, KeptStep, Size, WantedParts
from coordinatord.protocol.persisted_state import (
    PERSISTED_MAX,
    DiskStep,
    PersistedStep,
    PersistOffer,
    PersistReport,
)
from coordinatord.protocol.schema import Strict, printable

PARTS_MAX = 64
"""The most groups of parts that a node names. A worker has places for three steps of big state and six small ones.
Workers of one node that keep the same share a group, so ten are usual."""

SOURCES_MAX = 64
"""The most nodes that one node gets parts from. It needs so many only if the number of ranks has changed and each of
these nodes has another shard, and then it has to have memory for the state of all of them."""

COPIES_MAX = 2
"""The most nodes whose parts a node copies at a time. Others follow when it has these."""

PROTECTED_MAX = 3
"""The most protected steps: the newest whole one, the one that is to take its place, and one that is being written to a
disk."""

FIRST_STATES_MAX = 2
"""Two different digests show that not all ranks have the same state."""

Key = Annotated[str, printable(32, least=32)]
"""A secret in hexadecimal digits. It is never shown, logged or stored."""


class Keeper(Strict, frozen=True):
    """How other nodes get at the parts that a node keeps: fixed for the life of its process."""

    SECRETS: ClassVar[frozenset[str]] = frozenset({"key"})

    port: Port
    key: Key
    """A shared secret: by it a peer proves that the coordinator has sent it, and this node proves which node it is."""
    limit_bytes: Size
    """How much memory the kept state may use."""
    persist: PersistOffer | None = None
    """How it may write steps to a disk; None if it may not."""
    takes_copies: bool = False
    """Whether it keeps copies of what other nodes keep."""

    def __repr__(self) -> str:
        """Return it without the key, which belongs into no log."""
        return f"Keeper(port={self.port}, limit_bytes={self.limit_bytes})"


class Halt(Strict, frozen=True):
    """The workers of the round, which is to stop, keep one and the same step before they end."""

    step: Step | None
    """None before it is named. Until then each worker promises to stand still after its current step, and the node
    reports that step in `Holding.halts_after`."""


class Restoring(StrEnum):
    """How far a node has come with the parts that its workers resume from, in its present round."""

    NOTHING = "nothing"
    """There is nothing to get, or it has not begun."""
    FETCHING = "fetching"
    READY = "ready"
    """It has all that its workers need, and the digests are right."""
    FAILED = "failed"
    """It cannot get all of it, or a digest is wrong. The coordinator has to choose another step, for all nodes."""


class Holding(Strict, frozen=True):
    """What a node keeps of the run that it is in, and what that costs.

    Small parts change with each step, so they are named once no worker of the node lives any more. A part that is named
    with big state stays named until the coordinator has a newer step protected, or until it proves to be damaged.
    """

    parts: Annotated[tuple[KeptParts, ...], Meta(max_length=PARTS_MAX)]
    restoring: Restoring = Restoring.NOTHING
    problem: Sentence = ""
    """Why the last save or restore failed, if it did."""
    interval_steps: Step | None = None
    """How many steps lie between two saves of what no other host has; None if the workers have no such state. If they
    differ, it is the largest number."""
    save_s: Seconds | None = None
    """How long the last save took, by the slowest worker; None before the first."""
    used_bytes: Size = 0
    """How much memory the kept state uses."""
    skipped: Counter = 0
    """How many saves were left out because no place was free."""
    can_halt: bool = False
    """Whether each worker of the node keeps state, so that all of them can stand still after one step."""
    halts_after: Step | None = None
    """Each worker of the node stands still after this step at the latest, unless a later one is named; None while no
    halt is wanted."""
    writes_checkpoints: bool = False
    """Whether a worker of the node writes checkpoints by itself, or has announced that it will."""
    checkpointed: Step | None = None
    """The newest step of which all of these workers have written a checkpoint in this round; None before the first."""
    persisted: Annotated[tuple[PersistedStep, ...], Meta(max_length=PERSISTED_MAX)] = ()
    """The newest steps of the job that are whole on the disk, of any run, the newest first."""
    unusable: Sentence = ""
    """Why a step on the disk is of no use to this node; empty if none is. Such a step is not in `persisted`."""
    persisting: PersistReport | None = None
    """What it has done of the last order to write a step; None if there was none."""
    first_states: Annotated[tuple[Digest, ...], Meta(max_length=FIRST_STATES_MAX)] = ()
    """The digests of the states that its workers had after the first step of the round, if that began from nothing and
    no tensor is sharded: one digest if all workers had the same state, and else two. None before all have one."""
    copy_problem: Sentence = ""
    """Why the node cannot get a copy that it is to keep; empty if it has all of them, or is getting them."""
    unkept: Sentence = ""
    """What its workers' training depends on and they do not keep, as far as they have noticed; empty if nothing."""


class KeptSource(Strict, frozen=True):
    """A node that has parts which another node needs. It may be that node itself."""

    SECRETS: ClassVar[frozenset[str]] = frozenset({"key"})

    node: Name
    address: Address
    port: Port
    key: Key
    parts: Annotated[tuple[WantedParts, ...], Meta(min_length=1, max_length=WANTED_MAX)]

    def __repr__(self) -> str:
        """Return it without the key, which belongs into no log."""
        return f"KeptSource(node={self.node!r}, address={self.address!r}, port={self.port}, parts={self.parts!r})"


class KeptCopy(Strict, frozen=True):
    """Parts of one step that a node is to get from another one, and to keep as a copy while the step is protected."""

    round: Counter
    step: Step
    source: KeptSource

    @property
    def at(self) -> KeptStep:
        """The step."""
        return KeptStep(self.round, self.step)


class Resume(Strict, frozen=True):
    """The step that all workers of a round resume from, and where one node gets what it needs of it."""

    round: Counter
    """The round in which the step was done."""
    step: Step
    world_size: Annotated[int, Meta(ge=1, le=RANKS_MAX)]
    """How many ranks that round had."""
    shards: Annotated[int, Meta(ge=1, le=RANKS_MAX)]
    sources: Annotated[tuple[KeptSource, ...], Meta(max_length=SOURCES_MAX)]
    """The parts that the node needs, by holder. If `complete`, these are all of them."""
    complete: bool
    """Whether all holders are known. After a restart of the coordinator some have yet to report, and the node waits."""
    redone: Step | None = None
    """How many steps are done again, as far as workers have reported steps."""
    disk: DiskStep | None = None
    """The step is read from the disk, by each node for itself; None if it is in memory."""

    @property
    def at(self) -> KeptStep:
        """The step."""
        return KeptStep(self.round, self.step)
