"""What nodes report of the training state that they keep, and what their workers are to resume from.

A *part* is what one rank keeps of one step of one round. Of the *big* state (weights, the optimizer's state) it has one
of several shards, so a step is whole when each shard has a holder. The *small* state (buffers, random state, numbers)
is the rank's own.

On a disk that all nodes see, several of them write a step, each shard by one of them. When all have written, one of
them writes the step's manifest: without it the step counts for nothing, and with it the step is whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta

from coordinatord.protocol.fields import RANKS_MAX, Address, Count, Counter, Name, Port, Seconds, Sentence, Step
from coordinatord.protocol.schema import SchemaError, Strict, printable

BYTES_MAX = 2**53
"""The limit of a number of bytes: more than any host has, and readers of JSON still distinguish each from the next."""

WANTED_MAX = 16
"""The most groups of parts that one node gets from another."""

Size = Annotated[int, Meta(ge=0, le=BYTES_MAX)]

Digest = Annotated[int, Meta(ge=0, le=2**32 - 1)]
"""A CRC-32."""


class KeptStep(Strict, frozen=True, order=True):
    """A step of a round: the later round is the newer one, whatever the steps are."""

    round: Counter
    step: Step


class KeptParts(Strict, frozen=True):
    """What a node keeps of one step of one round, of consecutive ranks which all keep the same kinds of state.

    The shards are consecutive as well, modulo their number: if the first rank has shard 2 of 3, the next has shard 0.
    """

    round: Counter
    """The round in which the ranks had this state."""
    step: Step
    world_size: Annotated[int, Meta(ge=1, le=RANKS_MAX)]
    """How many ranks that round had."""
    shards: Annotated[int, Meta(ge=1, le=RANKS_MAX)]
    """How many shards the big state is divided into: 1 if each rank has all of it."""
    first_rank: Count
    ranks: Annotated[int, Meta(ge=1, le=RANKS_MAX)]
    """How many ranks it holds parts of, from the first one upward."""
    first_shard: Count
    big: bool
    small: bool
    """Whether these parts have the small state as of this step."""
    pending: bool
    """Whether they have what forward changes of the small state, for ranks that are not known to have completed the
    step."""
    protected: bool
    """Whether the node overwrites none of it until `Desired.protected` names other steps."""
    digest: Digest | None = None
    """The digest of the tensors in the big state of each of these ranks, which ranks with the same shard have in
    common. None for a shard that one rank has, and on a disk."""

    def __post_init__(self) -> None:
        """Check that ranks and shards are within their numbers. Raises `SchemaError`."""
        if self.first_rank + self.ranks > self.world_size:
            raise SchemaError(
                f"parts of {self.ranks} ranks from {self.first_rank} upward, but there are {self.world_size}"
            )
        if self.first_shard >= self.shards:
            raise SchemaError(f"first_shard is {self.first_shard}, but there are {self.shards}")

    @property
    def at(self) -> KeptStep:
        """The step of which these are parts."""
        return KeptStep(self.round, self.step)

    def holds(self, rank: int) -> bool:
        """Whether the part of a rank is among these."""
        return 0 <= rank - self.first_rank < self.ranks

    def shards_and_ranks(self) -> Iterator[tuple[int, int]]:
        """Yield the shard of the big state and the rank of each part, from the first rank upward."""
        for offset in range(self.ranks):
            yield (self.first_shard + offset) % self.shards, self.first_rank + offset


class WantedParts(Strict, frozen=True):
    """Parts of consecutive ranks that a node is to get."""

    first_rank: Count
    ranks: Annotated[int, Meta(ge=1, le=RANKS_MAX)]
    big: bool
    small: bool
    """Whether the small state is wanted, or what is pending of it."""

    @property
    def each_rank(self) -> range:
        """The ranks whose parts these are."""
        return range(self.first_rank, self.first_rank + self.ranks)


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
