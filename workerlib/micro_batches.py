"""Splits a batch of all workers into the micro-batches of each of them, whatever their number.

Hosts come and go during a run, and with them the number of workers. A batch that stays the same, to the sample, gives
the same training. The share of one rank may be more than its GPU can take at once, so it is split further.

It uses torch only for the default rank and world size.
"""

# ruff: noqa: PLC0415  # importing workerlib stays cheap, and possible without torch

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from workerlib import responder

STAND_IN = range(1)
"""The sample that a rank computes for nothing when it has none of its own: the first of the batch."""


class MicroBatch(NamedTuple):
    """One forward and backward of a rank."""

    samples: range
    """The indices of its samples in the batch of all ranks: at least one, and at most `micro`."""
    weight: float
    """The factor of its mean loss: the number of its samples, times the world size, divided by the batch."""
    last: bool
    """Whether it is the last one of the step, with which gradients are averaged."""


def global_batch(
    batch: int, *, micro: int, rank: int | None = None, world_size: int | None = None
) -> tuple[MicroBatch, ...]:
    """Return the micro-batches of this rank in a step whose batch has the same size on any number of ranks.

        for micro in workerlib.global_batch(1024, micro=16):
            x, y = samples_of(step, micro.samples)
            with nullcontext() if micro.last else replica.no_sync():
                loss = cross_entropy(replica(x), y) * micro.weight
                loss.backward()
        optimizer.step()

    `batch` counts the samples of all ranks together, and `micro` is how many a rank can take at once.

    * The sum of a rank's weighted mean losses, averaged over the ranks, is the mean over the batch. So are the
      gradients, since DDP and FSDP2 average them.
    * All ranks have the same number of micro-batches: each forward and backward of FSDP2 is a collective, and so is the
      last backward under DDP. The sizes of all micro-batches of all ranks differ by one sample at most.
    * With `micro=1` the sizes are one or none, unless the world size divides the batch. A rank without a sample for a
      micro-batch has a stand-in there, the first sample of the batch, with the weight 0.

    `rank` and `world_size` are by default those of torch's default process group. Where only some of the ranks have
    samples of their own, as with tensor parallelism, give those of the dimension of the mesh that has them.

    Raises `ValueError` for wrong numbers, and if one of these two is left out before there is a process group.
    """
    responder.begin()  # so that nodeclient can ask where this worker waits, even without any other use of workerlib
    return split(batch, micro, *rank_and_world_size(batch, micro, rank, world_size))


def rank_and_world_size(batch: int, micro: int, rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return the rank and the world size, by default those of torch's default process group.

    Raises `ValueError` if they make no sense, or the batch or the micro-batches do not, or there is no such group.
    """
    if rank is None or world_size is None:
        import torch.distributed as dist

        if not (dist.is_available() and dist.is_initialized()):
            raise ValueError(
                "the micro-batches of a rank depend on its rank and the world size, and there is no process group yet: "
                "call workerlib.init() first, or give rank and world_size"
            )
        rank = dist.get_rank() if rank is None else rank
        world_size = dist.get_world_size() if world_size is None else world_size
    numbers: dict[str, object] = {"the batch": batch, "micro": micro, "world_size": world_size}
    for name, number in numbers.items():
        if not isinstance(number, int) or number < 1:
            raise ValueError(f"{name} is {number!r}, but should be an int of at least 1")
    if rank not in range(world_size):
        raise ValueError(f"rank {rank} is not one of {world_size} ranks, which count from 0")
    if batch < world_size:
        raise ValueError(
            f"a batch of {batch} samples is too small for {world_size} ranks: it is that of all ranks together, so "
            "give it a sample for each rank at least, or let fewer nodes join (--nnodes MIN:MAX)"
        )
    return rank, world_size


@lru_cache(maxsize=8)  # the batches of an epoch have one size or two
def split(batch: int, micro: int, rank: int, world_size: int) -> tuple[MicroBatch, ...]:
    """Return the micro-batches of a rank, whose samples are `rank`, `rank + world_size` and so on.

    The last batch of an epoch may have fewer samples than there are ranks.
    """
    share = range(rank, batch, world_size)
    count = -(-batch // (micro * world_size))  # rounded up, so that it is the same on all ranks
    ends = [-(-len(share) * number // count) for number in range(count + 1)]
    parts = [share[begin:end] for begin, end in pairwise(ends)]
    return tuple(
        MicroBatch(part or STAND_IN, len(part) * world_size / batch, number == count)
        for number, part in enumerate(parts, 1)
    )
