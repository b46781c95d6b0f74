"""Deals out the samples of an epoch to the workers, even if their number changes in the middle of the epoch.

torch's DistributedSampler gives each rank a list of samples for the whole epoch. If the epoch goes on with another
number of ranks, these lists do not tell which samples are done. Here, one number tells it.

This module uses torch only for the default rank and world size.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Mapping, Sized
from hashlib import shake_128
from typing import Any, Literal, get_args

from workerlib import responder
from workerlib.micro_batches import MicroBatch, rank_and_world_size, split

Remainder = Literal["exact", "pad", "drop"]
"""How to treat the samples at the end of an epoch that do not fill a batch."""


class ElasticDistributedSampler:
    """The batches of one rank, for `DataLoader(batch_sampler=...)`, in place of torch's DistributedSampler.

        sampler = workerlib.ElasticDistributedSampler(dataset, batch_size=256)
        loader = DataLoader(dataset, batch_sampler=sampler, num_workers=4)
        if checkpoint:
            sampler.load_state_dict(checkpoint["sampler"])
        for epoch in range(sampler.epoch, epochs):
            sampler.set_epoch(epoch)
            for micro, (images, labels) in zip(sampler.micro_batches(), loader, strict=True):
                train_step(images, labels, micro.weight)
                sampler.advance()
                if ctx.should_stop():
                    save(model, optimizer, sampler.state_dict())
                    return  # the next round goes on from here

    An epoch is one order of all samples. It depends on `seed`, the epoch and the length of the dataset, and is the same
    on every host, with every number of workers and every version of Python and torch. A batch is the next `batch_size`
    samples of that order, for *all* ranks together, so an epoch has as many steps on two workers as on five, with the
    same results. Rank r of w gets the samples r, r + w, r + 2w ... of the batch. So the state is one number: how many
    samples of the order are done. Any number of workers, with any batch size, can go on from there.

    These rules hold over a whole epoch, through any number of changes:

    * Every rank has the same number of batches, as DDP needs: a rank with one more would wait for the others for ever.
    * The shares of a batch differ by one sample at most. With the weights of `micro_batches()`, DDP's average of the
      ranks' mean losses is the mean over the batch nevertheless.
    * With `micro`, a rank gets its share of a batch in the micro-batches of `workerlib.global_batch`. A step ends with
      the one that is `last`, and `advance` is called then.
    * `remainder="exact"`: each sample comes exactly once, and the last batch may be smaller than the others. If it has
      fewer samples than there are ranks, some ranks get its first sample as a stand-in, with the weight 0.
    * `remainder="pad"`: each batch has `batch_size` samples. The last one is filled with samples from the beginning of
      the order; `repeats()` returns them.
    * `remainder="drop"`: each batch has `batch_size` samples. Those at the end that do not fill one are left out;
      `left_out()` returns them.

    Only `advance` changes the state, so call it after each step. Samples that the workers of a `DataLoader` have read
    ahead do not count as done, and are dealt out again after a restart.

    Only the length of `dataset` is used. `rank` and `world_size` are by default those of torch's default process group.
    Raises `ValueError` for wrong numbers.
    """

    def __init__(
        self,
        dataset: Sized,
        batch_size: int,
        *,
        micro: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        remainder: Remainder = "exact",
    ) -> None:
        responder.begin()  # so that nodeclient can ask where this worker waits
        self._batch_size = batch_size
        self._micro = batch_size if micro is None else micro
        self._rank, self._world_size = rank_and_world_size(batch_size, self._micro, rank, world_size)
        self._shuffle = shuffle
        self._seed = seed
        self._remainder = remainder
        self._length = len(dataset)
        self._epoch = 0
        self._done = 0
        self._ended = False
        """Whether this process has trained on the last batch of the epoch. A loaded state does not count: a script that
        goes on with an epoch that was over finds no batch left, and begins the next one."""
        self._order: tuple[int, array[int]] | None = None
        """An epoch and its order; None before the first use."""
        if remainder not in get_args(Remainder):
            raise ValueError(f"remainder is {remainder!r}, but should be one of {', '.join(get_args(Remainder))}")

    @property
    def epoch(self) -> int:
        """The current epoch, from 0."""
        return self._epoch

    @property
    def samples_done(self) -> int:
        """How many samples of the epoch were trained on, by all ranks together."""
        return self._done

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch; nothing changes if it is the current one. Call this before each `for batch in loader`."""
        if epoch != self._epoch:
            self._epoch, self._done, self._ended = epoch, 0, False

    def advance(self) -> None:
        """Record that all ranks have trained on the next batch. Raises `RuntimeError` if the epoch has no more."""
        size = self._size(self._done)
        if size == 0:
            raise RuntimeError(f"advance() was called more often than epoch {self._epoch} has batches")
        self._done = min(self._done + size, self._length)
        self._ended = self._size(self._done) == 0

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint: all ranks have the same one after the same step."""
        return {
            "epoch": self._epoch,
            "samples_done": self._done,
            "length": self._length,
            "shuffle": self._shuffle,
            "seed": self._seed,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken; rank, world size and batch size may differ.

        Raises `ValueError` for another length or order of the dataset: samples would come twice or never.
        """
        own = self.state_dict()
        for name in ("length", "shuffle", "seed"):
            if state[name] != own[name]:
                raise ValueError(
                    f"the checkpoint was made with {name} {state[name]}, but here it is {own[name]}, so it cannot be "
                    f"said which samples of epoch {state['epoch']} are left: use the same dataset and arguments, or "
                    f"begin the next epoch with set_epoch({state['epoch'] + 1}) instead of loading this state"
                )
        self._epoch, self._done, self._ended = state["epoch"], state["samples_done"], False

    def __len__(self) -> int:
        """Return how many micro-batches of the epoch are left, which is the same on all ranks."""
        return sum(1 for _ in self._left())

    def __iter__(self) -> Iterator[list[int]]:
        """Return the samples of each micro-batch of this rank that is left of the epoch.

        Raises `RuntimeError` if this process has trained on the whole epoch already.
        """
        if self._ended:
            raise RuntimeError(
                f"epoch {self._epoch} has been trained on: call set_epoch({self._epoch + 1}) before the next one"
            )
        return self._shares()

    def micro_batches(self) -> Iterator[MicroBatch]:
        """Yield each micro-batch that is left of the epoch, with its weight, in step with the loader."""
        return (micro for _, micro in self._left())

    def repeats(self) -> list[int]:
        """Return the samples with which the last batch is filled, each as often as it is repeated."""
        if self._remainder != "pad":
            return []
        order = self._samples()
        missing = -(self._length - self._done) % self._batch_size
        return [order[place % self._length] for place in range(missing)]

    def left_out(self) -> list[int]:
        """Return the samples that no batch of this epoch will have."""
        if self._remainder != "drop":
            return []
        left = (self._length - self._done) % self._batch_size
        return list(self._samples()[self._length - left :])

    def _shares(self) -> Iterator[list[int]]:
        order = self._samples()  # read with the first share: a loader may call `iter` before `set_epoch`
        for start, micro in self._left():
            yield [order[(start + place) % self._length] for place in micro.samples]

    def _left(self) -> Iterator[tuple[int, MicroBatch]]:
        """Yield each micro-batch that is left of the epoch, and the place in the order at which its batch begins."""
        start = self._done
        while size := self._size(start):
            for micro in split(size, self._micro, self._rank, self._world_size):
                yield start, micro
            start = min(start + size, self._length)

    def _size(self, start: int) -> int:
        """Return the size of the batch that begins at this place in the order; 0 if there is none."""
        left = self._length - start
        full = self._batch_size
        match self._remainder:
            case "drop":
                return full if left >= full else 0
            case "pad":
                return full if left else 0
            case "exact":
                return min(left, full)

    def _samples(self) -> array[int]:
        if self._order is None or self._order[0] != self._epoch:
            order = array("Q", range(self._length))
            if self._shuffle:
                _shuffle(order, f"{self._seed} {self._epoch}")
            self._order = self._epoch, order
        return self._order[1]


def _shuffle(order: array[int], seed: str) -> None:
    """Shuffle `order` in place.

    The random numbers come from a standardised hash function, which no release of Python or torch changes.
    """
    draws = array("Q", shake_128(seed.encode()).digest(8 * len(order)))
    if sys.byteorder == "big":
        draws.byteswap()
    for last, draw in zip(range(len(order) - 1, 0, -1), draws, strict=False):
        chosen = draw % (last + 1)
        order[last], order[chosen] = order[chosen], order[last]
