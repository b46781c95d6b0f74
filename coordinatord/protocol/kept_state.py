"""The parts of messages about kept training state: what nodes report of it, and what the coordinator orders.

Kept state outlives workers in the memory of their nodes, so that a round can resume from its last step. A *part* is
the state that one rank keeps of one step of one round. It has one of several shards of the *big* state (weights, the
optimizer's state), so a step is whole when each shard has a holder. The *small* state (buffers, random state, numbers)
is the rank's own.

On a shared disk, several nodes write a step, each shard by one of them. When all have written, one of them, the
committer, writes the step's manifest, which makes the step whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta

from coordinatord.protocol.fields import (
    RANKS_MAX,
    WORKERS_MAX,
    Address,
    Count,
    Counter,
    Name,
    Port,
    Seconds,
    Sentence,
    Step,
)
from coordinatord.protocol.news import Quiet
from coordinatord.protocol.schema import SchemaError, Strict, printable
from coordinatord.protocol.text import RANKS_NAMED_MAX

BYTES_MAX = 2**53
"""The limit of a number of bytes: more than any host has, and still exact in JSON readers."""

WANTED_MAX = 16
"""The most groups of parts that one node fetches from another: parts of consecutive ranks share a group, so a few are
usual."""

Size = Annotated[int, Meta(ge=0, le=BYTES_MAX)]

Digest = Annotated[int, Meta(ge=0, le=2**32 - 1)]
"""A CRC-32."""


class KeptStep(Strict, frozen=True, order=True):
    """A step of a round, ordered by round before step."""

    round: Counter
    step: Step


class AtStep(Strict, frozen=True):
    """The base of records about one step."""

    round: Counter
    """The round in which the step was made."""
    step: Step

    @property
    def at(self) -> KeptStep:
        """The step, to compare with others."""
        return KeptStep(self.round, self.step)


class AtShardedStep(AtStep, frozen=True):
    """The base of records about one step that also say how its state is divided."""

    world_size: Annotated[int, Meta(ge=1, le=RANKS_MAX)]
    """The number of ranks of its round."""
    shards: Annotated[int, Meta(ge=1, le=RANKS_MAX)]
    """The number of shards of the big state: 1 if each rank has all of it."""


class KeptParts(AtShardedStep, frozen=True):
    """A node's parts of one step of one round, of consecutive ranks with the same kinds of state.

    The shards are consecutive as well, modulo their number: if the first rank has shard 2 of 3, the next has shard 0.
    """

    first_rank: Count
    ranks: Annotated[int, Meta(ge=1, le=RANKS_MAX)]
    """The number of ranks, from the first one upward."""
    first_shard: Count
    big: bool
    small: bool
    """Whether these parts have the small state as of this step."""
    pending: bool
    """Whether their small state lacks the numbers that the rest of the step would have changed: the ranks may have been
    stopped within it."""
    protected: bool
    """Whether the node overwrites none of these parts until `Desired.protected` names other steps."""
    digest: Digest | None = None
    """The digest of the tensors in the big state, equal for all ranks with the same shard. None for a shard of only one
    rank, and on a disk."""

    def __post_init__(self) -> None:
        """Check that ranks and shards are within their limits. Raises `SchemaError`."""
        if self.first_rank + self.ranks > self.world_size:
            raise SchemaError(
                f"parts of {self.ranks} ranks from {self.first_rank} upward, but there are {self.world_size}"
            )
        if self.first_shard >= self.shards:
            raise SchemaError(f"first_shard is {self.first_shard}, but there are {self.shards}")

    def has(self, rank: int) -> bool:
        """Whether these include the part of a rank."""
        return 0 <= rank - self.first_rank < self.ranks

    def shards_and_ranks(self) -> Iterator[tuple[int, int]]:
        """Yield the shard of the big state and the rank of each part, from the first rank upward."""
        for offset in range(self.ranks):
            yield (self.first_shard + offset) % self.shards, self.first_rank + offset


DIGESTS_MAX = 64
"""The most workers of a node that report digests of their state, four times the GPUs of the largest hosts. A report of
more would be too long for a heartbeat."""


class StateDigest(Strict, frozen=True):
    """The digest of one worker's parameters and optimizer state after a step."""

    step: Step
    shard: Count
    """The worker's shard of the state: all ranks with the same shard should have the same digest."""
    digest: Digest


class WantedParts(Strict, frozen=True):
    """Parts of consecutive ranks that a node has to fetch."""

    first_rank: Count
    ranks: Annotated[int, Meta(ge=1, le=RANKS_MAX)]
    big: bool
    small: bool
    """Whether to fetch the small state, even if the holder has only a pending one."""

    @property
    def each_rank(self) -> range:
        """The ranks of these parts."""
        return range(self.first_rank, self.first_rank + self.ranks)


PERSISTED_MAX = 8
"""The most steps on the disk that a node reports: those that its last order has named to stay, and the newest ones.
Workers resume from the newest step that is not damaged."""

PERSISTED_PARTS_MAX = 32
"""The most groups of parts of one such step. Ranks with the same kinds of files share a group, so three are usual."""

KEEP_STEPS_MAX = 1000
"""The most steps that a job may have on the disk: a starting node scans all of them."""

ABORTED_MAX = 8
"""The most aborted attempts that an order names: the last ones. The files of older ones are deleted when a step becomes
whole."""

ATTEMPTS_MAX = 2**30
"""The highest valid number of an attempt in a node's report: half of the protocol's limit, so that more can follow."""

SERIAL_MAX = 2**53 - 1
"""The highest `Serial`, which is still exact in all readers of JSON."""

Serial = Annotated[int, Meta(ge=1, le=SERIAL_MAX)]
"""The number of a step on the disk, over all runs of a job: a later step has a higher one."""


STAYS_MAX = 2
"""The most old steps that an order names to stay on the disk: the one that workers resume from, and the newest one at
which replicas were alike."""


class PersistOffer(Strict, frozen=True):
    """A user's settings for a node's directory of steps on a disk."""

    every_s: Seconds
    """The time between two steps."""
    keep: Annotated[int, Meta(ge=1, le=KEEP_STEPS_MAX)]
    """How many of the newest steps to keep."""


class PersistedStep(Strict, frozen=True):
    """A step that is whole on the disk."""

    serial: Serial
    run: Name
    parts: Annotated[tuple[KeptParts, ...], Meta(min_length=1, max_length=PERSISTED_PARTS_MAX)]
    """All of them are of one step."""

    @property
    def at(self) -> KeptStep:
        """The step, and its round in that run."""
        return self.parts[0].at


class PersistState(StrEnum):
    """A node's progress in writing a step."""

    WRITING = "writing"
    WRITTEN = "written"
    """All of its files are on the disk; the step is not whole yet."""
    COMMITTED = "committed"
    """It has written the manifest, so the step is whole."""
    FAILED = "failed"
    """The attempt has failed; a later one writes the newest step of its time."""


class PersistReport(AtStep, frozen=True):
    """A node's progress on an order to write a step."""

    state: PersistState
    bytes: Quiet[Size]
    """The bytes that were checked and written so far; growth shows that nothing hangs."""
    problem: Sentence = ""
    attempt: Counter = 0
    """The number of the attempt, as of the order."""


class PersistOrder(AtShardedStep, frozen=True):
    """The parts of a step of the present run that a node has to write."""

    parts: Annotated[tuple[WantedParts, ...], Meta(max_length=WANTED_MAX)]
    commit: bool
    """Whether the node has to commit the step: all nodes have written their parts."""
    stays: Annotated[tuple[Serial, ...], Meta(max_length=STAYS_MAX)] = ()
    """Steps that must not be deleted although enough newer ones are there."""
    small: Annotated[int, Meta(ge=0, le=RANKS_MAX)] = 0
    """The number of ranks whose small state all nodes together write: the committer must find all of them. It is 0
    without `commit`."""
    attempt: Counter = 0
    """The number of the attempt in the run. At a new one a node begins anew, even if it missed the last one's end."""
    aborted: Annotated[tuple[Counter, ...], Meta(max_length=ABORTED_MAX)] = ()
    """Attempts of the run that ended before their commit. Their files are deleted before this attempt: they may have
    filled the disk."""


class DiskStep(Strict, frozen=True):
    """The run and the round of a step, by its names on the disk; the run may be an earlier one."""

    run: Name
    round: Counter


PARTS_MAX = 64
"""The most groups of parts that a node reports. A worker has three places of big state and six of small state.
Workers of one node with the same kinds of parts share a group, so ten are usual."""

SOURCES_MAX = 64
"""The most nodes that one node fetches parts from. It needs this many only if the number of ranks has changed and each
of these nodes has another shard, and then it needs memory for the state of all of them."""

COPIES_MAX = 2
"""The most nodes whose parts a node copies at a time; others follow when it has these."""

PROTECTED_MAX = 3
"""The most protected steps, which a node does not overwrite: the newest whole one, its candidate successor, and one
that is being written to a disk. A node has memory for as many."""

FIRST_STATES_MAX = 2
"""The most digests of first states in a report: two different ones show that not all ranks have the same state."""

UNSTEPPED_MAX = RANKS_NAMED_MAX + 1
"""The most ranks in a report that never call `ctx.step`: as many as a text names, and one to show that there are more.
"""

Key = Annotated[str, printable(32, least=32)]
"""A secret in hexadecimal digits. It is never shown, logged or stored."""


class Keeper(Strict, frozen=True):
    """How other nodes fetch the parts that a node keeps: fixed for the life of its process."""

    SECRETS: ClassVar[frozenset[str]] = frozenset({"key"})  # crash files mask it

    port: Port
    key: Key
    """A secret that only the coordinator hands out. So a peer that has it was sent by the coordinator. This node proves
    its own identity to the peer by the same secret."""
    limit_bytes: Size
    persist: PersistOffer | None = None
    """Its settings for steps on a disk; None without such a directory."""
    takes_copies: bool = False
    """Whether it keeps copies of other nodes' parts."""

    def __repr__(self) -> str:
        """Return it without the key, which must not be logged."""
        return f"Keeper(port={self.port}, limit_bytes={self.limit_bytes})"


class Halt(Strict, frozen=True):
    """An order to all workers of a stopping round: pause after the same step, and keep that before you end."""

    step: Step | None
    """None before it is chosen. Until then each worker promises to pause after its current step, which the node reports
    in `Holding.halts_after`."""


class Restoring(StrEnum):
    """A node's progress in fetching the parts that its workers resume from, in its present round."""

    NOTHING = "nothing"
    """There is nothing to fetch, or it has not begun."""
    FETCHING = "fetching"
    READY = "ready"
    """It has all parts, and the digests are right."""
    FAILED = "failed"
    """It cannot fetch all of them, or a digest is wrong. The coordinator has to choose another step, for all nodes."""


HELD_RANKS_MAX = 16 * WORKERS_MAX
"""The most ranks in a node's report, counted for each step: the coordinator stores each. Three steps of a node's own
workers, with its copies, have fewer."""


class Holding(Strict, frozen=True):
    """The state that a node keeps of its run, and its cost.

    Small parts change with each step, so they are reported only when no worker of the node lives. A part with big state
    is reported until the coordinator protects a newer step, or until the part proves damaged.
    """

    parts: Annotated[tuple[KeptParts, ...], Meta(max_length=PARTS_MAX)]
    restoring: Restoring = Restoring.NOTHING
    problem: Sentence = ""
    """Why the last save or restore failed, if it did."""
    interval_steps: Step | None = None
    """The number of steps between two saves of state that no other host has, the largest of all workers; None without
    such state."""
    save_s: Seconds | None = None
    """The duration of the last save on the slowest worker; None before the first."""
    used_bytes: Size = 0
    skipped: Counter = 0
    """How many saves were skipped because no place was free."""
    can_halt: bool = False
    """Whether each worker of the node keeps state, so that all of them can halt after one step."""
    halts_after: Step | None = None
    """Each worker of the node halts at the latest after this step, unless a later one is chosen; None without a
    halt."""
    writes_checkpoints: bool = False
    """Whether a worker of the node writes its own checkpoints, or has announced that it will."""
    checkpointed: Step | None = None
    """The newest step whose checkpoint all such workers have written in this round; None before the first."""
    persisted: Annotated[tuple[PersistedStep, ...], Meta(max_length=PERSISTED_MAX)] = ()
    """Whole steps of the job on the disk, of any run, the newest first; see `PERSISTED_MAX`."""
    unusable: Sentence = ""
    """Why this node cannot use a step on the disk, which is then not in `persisted`; empty if it can use all."""
    persisting: PersistReport | None = None
    """Its progress on the last order to write a step; None without one."""
    first_states: Annotated[tuple[Digest, ...], Meta(max_length=FIRST_STATES_MAX)] = ()
    """The digests of its workers' states after the first step, if the round began from nothing and no tensor is
    sharded: one if all states are equal, else two. Empty before all workers have one."""
    copy_problem: Sentence = ""
    """Why the node cannot fetch a copy; empty if it has all of them, or is fetching them."""
    unkept: Sentence = ""
    """State that its workers need but do not keep, as far as noticed; empty without any."""
    pageable: Sentence = ""
    """Why a worker's saves from a GPU go into memory that is not page-locked; empty if none does."""
    unstepped: Annotated[tuple[Count, ...], Meta(max_length=UNSTEPPED_MAX)] = ()
    """The first ranks of its workers that train in its round, and keep state, and never call `ctx.step`."""

    def __post_init__(self) -> None:
        """Check that the parts are not of too many ranks. Raises `SchemaError`."""
        if sum(part.ranks for part in self.parts) > HELD_RANKS_MAX:
            raise SchemaError(f"parts of more than {HELD_RANKS_MAX} ranks")


class KeptSource(Strict, frozen=True):
    """A node with parts that the receiver needs; it may be the receiver itself."""

    SECRETS: ClassVar[frozenset[str]] = frozenset({"key"})  # crash files mask it

    node: Name
    address: Address
    port: Port
    key: Key
    parts: Annotated[tuple[WantedParts, ...], Meta(min_length=1, max_length=WANTED_MAX)]

    def __repr__(self) -> str:
        """Return it without the key, which must not be logged."""
        return f"KeptSource(node={self.node!r}, address={self.address!r}, port={self.port}, parts={self.parts!r})"


class KeptCopy(AtStep, frozen=True):
    """Parts of one step that a node has to fetch from another one, and to keep while the step is protected."""

    source: KeptSource


class Resume(AtShardedStep, frozen=True):
    """The step that all workers of a round resume from, and the sources of one node's parts of it."""

    sources: Annotated[tuple[KeptSource, ...], Meta(max_length=SOURCES_MAX)]
    """The parts that the node needs, by holder; all of them if `complete`."""
    complete: bool
    """Whether all holders are known. After a restart of the coordinator some have yet to report, and the node waits."""
    redone: Step | None = None
    """How many steps are redone, as far as workers have reported steps; None if that is not known."""
    redone_at_least: bool = False
    """Whether it may be more."""
    disk: DiskStep | None = None
    """The step on the disk that each node reads; None for a step in memory."""
