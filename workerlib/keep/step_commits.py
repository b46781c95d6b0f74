"""The commit of a step before its state is written: its round, and the part of the state that this rank has."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from workerlib.env import WorkerEnvironment
from workerlib.keep.arena import Commit
from workerlib.keep.pieces import is_sharded, shard_of


class StepCommits:
    """The commits of this rank in this round."""

    def __init__(self, environment: WorkerEnvironment, tensors: Iterable[torch.Tensor]) -> None:
        """Look at all tensors of the state."""
        self._environment = environment
        all_ = list(tensors)
        self.shard, self.shards = shard_of(all_, environment.rank, environment.world_size)
        self.has_sharded = any(map(is_sharded, all_))
        """Whether tensors are bound to the process group of this round, even if this rank has the whole of them."""
        self.alone = environment.world_size == self.shards
        """Whether no other rank has this state."""
        self.is_compared = self.alone or self.has_sharded
        """Whether it is known if other ranks have the same state. Until then, it is saved as that of this rank."""
        if not self.is_compared:
            self.shard, self.shards = environment.rank, environment.world_size
        self._begun_at = -1
        self._origin_round: int | None = None
        """The round of the step that this round goes on from, if its parts are those of as many ranks."""

    @property
    def requested(self) -> tuple[int, int]:
        """The shard for which memory is requested, and how many there are: until it is known, ranks count as alike."""
        return (self.shard, self.shards) if self.is_compared else (0, 1)

    @property
    def problem(self) -> str:
        """Why no state can be saved; empty if it can."""
        return "" if self.is_compared else "it is not known yet whether all ranks have the same state"

    def learn(self, *, alike: bool) -> None:
        """Note whether all ranks have the same state, or each has its own."""
        self.is_compared, self.alone = True, not alike
        if alike:
            self.shard, self.shards = 0, 1

    def begin(self, round_: int, step: int, shape: tuple[int, int], *, own: bool) -> None:
        """Go on from a step of a round with `shape`: its world size and the number of its shards.

        All ranks have got the same state from it, unless each has got its `own`.
        """
        self._begun_at = step
        if not self.is_compared:
            self.learn(alike=not own)
        if shape == (self._environment.world_size, self.shards):
            self._origin_round = round_

    def is_of_others(self, step: int) -> bool:
        """Whether a step was done by other ranks than those of this round."""
        return step == self._begun_at and self._origin_round is None

    def of(self, step: int, flags: int = 0) -> Commit:
        """Return the commit of a step, without its length and serial.

        The step that a round goes on from keeps the number of the round that did it, since the arena may hold this
        rank's own state of that time.
        """
        environment, round_ = self._environment, self._environment.round
        if step == self._begun_at and self._origin_round is not None:
            round_ = self._origin_round
        place = (environment.rank, environment.world_size, self.shard, self.shards)
        return Commit(step, round_, 0, *place, serial=0, flags=flags)
