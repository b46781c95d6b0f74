"""Parts of the training state, as messages name them: of which step they are, and of which ranks.

A *part* is what one rank keeps of one step of one round. Of the *big* state (weights, the optimizer's state) it has one
of several shards, so a step is whole when each shard has a holder. The *small* state (buffers, random state, numbers)
is the rank's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from coordinatord.protocol.fields import RANKS_MAX, Count, Counter, Step
from coordinatord.protocol.schema import SchemaError, Strict

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
