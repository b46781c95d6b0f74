"""A training that comes to a moment from which it does not return by itself, as a program.

Arguments: `ddp` or `fsdp`, the moment, the folder for its notes, and the step after which the moment comes. Each rank
notes a digest of its own part of the parameters at each step, before that is kept, and makes a file when it is in the
moment.
"""

import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import workerlib
from tests.support.kept_training import FEATURES, STEP_S, digest_of, note, shard, two_layers

TRAINS = "training"
"""The moment that never comes."""


def main(kind: str, moment: str, folder: str, last: str) -> None:
    """Train."""
    torch.set_num_threads(1)
    with workerlib.init() as ctx:
        model = two_layers()
        trained: nn.Module = model
        if kind == "ddp":
            trained = DistributedDataParallel(model)
        else:
            shard(model, ctx.world_size)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        data = torch.randn(64, FEATURES, generator=torch.Generator().manual_seed(1))
        done = ctx.keep(model=trained, optimizer=optimizer)

        def note_step(step: int) -> None:
            note(Path(folder), ctx, step, digest_of([*model.parameters()]))

        def comes() -> None:
            (Path(folder) / f"{ctx.rank}.{ctx.round}.here").touch()

        if done >= 0:
            note_step(done)
            MOMENTS[moment](trained, data, comes, ctx.rank)
        chooses = moment in CHOOSES
        if chooses:
            ctx.should_stop()
        for step in range(done + 1, 1_000_000):
            if step == int(last) + 1 and moment in MOMENTS and moment not in AFTER_RESTART:
                MOMENTS[moment](trained, data, comes, ctx.rank)
            optimizer.zero_grad()
            trained(data[step % 8 :: 8]).square().mean().backward()
            optimizer.step()
            note_step(step)
            ctx.step(step)
            if chooses and ctx.should_stop():
                break
            if step == int(last):
                (Path(folder) / f"{ctx.rank}.trains").touch()
            Event().wait(STEP_S)


def _evaluates(model: nn.Module, data: torch.Tensor, comes: Callable[[], None], rank: int) -> None:
    """Evaluate for longer than anybody waits."""
    del rank
    model.eval()
    comes()
    with torch.no_grad():
        for _ in count():
            model(data)
            Event().wait(0.01)


def _warms_up(model: nn.Module, data: torch.Tensor, comes: Callable[[], None], rank: int) -> None:
    """Do forward and backward, and no step."""
    del rank
    comes()
    for _ in count():
        model(data).square().mean().backward()
        model.zero_grad()
        Event().wait(0.01)


def _compiles(model: nn.Module, data: torch.Tensor, comes: Callable[[], None], rank: int) -> None:
    """Compile a step, which takes very long."""
    del model, rank

    def compiler(*_: Any) -> Any:
        comes()
        Event().wait()

    torch.compile(lambda x: (x * 2).sum(), backend=compiler)(data)


def _loads(model: nn.Module, data: torch.Tensor, comes: Callable[[], None], rank: int) -> None:
    """Wait for a batch of a data loader, whose children are slow."""
    del model, rank
    loader = torch.utils.data.DataLoader(_Slow(data), batch_size=4, num_workers=2)
    batches = iter(loader)
    for _ in range(loader.num_workers):
        next(batches)
    comes()
    next(batches)


class _Slow(torch.utils.data.IterableDataset[torch.Tensor]):
    """Has one batch of samples at once in each child, and then none for long."""

    def __init__(self, data: torch.Tensor) -> None:
        self._data = data

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Yield the first samples."""
        yield from self._data[:4]
        Event().wait()


def _hangs(model: nn.Module, data: torch.Tensor, comes: Callable[[], None], rank: int) -> None:
    """Wait in a collective for a rank that never comes."""
    del model, data
    comes()
    if rank == 1:
        Event().wait()
    dist.all_reduce(torch.ones(1))


def _waits(model: nn.Module, data: torch.Tensor, comes: Callable[[], None], rank: int) -> None:
    """Do something else for very long."""
    del model, data, rank
    comes()
    Event().wait()


MOMENTS: dict[str, Callable[[nn.Module, torch.Tensor, Callable[[], None], int], None]] = {
    "evaluation": _evaluates,
    "evaluation of a script that chooses its last step": _evaluates,
    "warm-up": _warms_up,
    "compile": _compiles,
    "data loader": _loads,
    "collective": _hangs,
    "before the first step": _waits,
}

CHOOSES = ("evaluation of a script that chooses its last step",)
"""Here the script calls `should_stop`."""

AFTER_RESTART = ("warm-up", "before the first step")
"""These come in the second round, before it has done a step."""


if __name__ == "__main__":
    main(*sys.argv[1:])
