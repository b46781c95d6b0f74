"""torchdata's StatefulDataLoader: each round goes on at the very sample where the last one stopped.

    nodeclient join --standalone --nproc-per-node 2 -- python stateful_loader.py --checkpoints /tmp/loader

Its state is that of one worker of one world size: each worker saves its own, and the size must stay the same
(`--nnodes 2`, with spares for what may fail). Where it changes, use `workerlib.ElasticDistributedSampler`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

import workerlib


class Points(Dataset[tuple[int, Tensor]]):
    """Numbered points on a line."""

    def __len__(self) -> int:
        """Return how many there are."""
        return 1600

    def __getitem__(self, index: int) -> tuple[int, Tensor]:
        """Return one, with its number."""
        return index, torch.tensor([index / 1600])


def main() -> None:
    """Be one of the workers."""
    parser = argparse.ArgumentParser(description="Train with a data loader that can be resumed.")
    parser.add_argument("--checkpoints", type=Path, required=True, help="a folder that all nodes share")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--trace", type=Path, help="write which samples each step had into files in this folder")
    arguments = parser.parse_args()
    with workerlib.init() as ctx:
        train(ctx, arguments)


def train(ctx: workerlib.Context, arguments: argparse.Namespace) -> None:
    """Go on from the newest checkpoint, until all steps are done or the workers are asked to stop."""
    data = Points()
    sampler = StatefulDistributedSampler(data, ctx.world_size, ctx.rank, shuffle=True, seed=0)
    loader = StatefulDataLoader(data, batch_size=8, sampler=sampler, num_workers=1)
    model = nn.Linear(1, 1).to(ctx.device)
    replica = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    state = {"model": model, "optimizer": optimizer, "loader": loader}
    epoch, step = restore(ctx, arguments.checkpoints, state)
    if ctx.rank == 0:
        print(f"goes on after step {step} with {ctx.world_size} workers", flush=True)

    ctx.should_stop()
    while step < arguments.steps:
        sampler.set_epoch(epoch)
        for numbers, x in loader:
            loss = mse_loss(replica(x.to(ctx.device)), 3 * x.to(ctx.device) + 2)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step += 1
            ctx.step(step)
            note(arguments.trace, ctx.rank, epoch, step, numbers)
            stopping = step % 10 == 0 and ctx.should_stop()
            if stopping or step % 100 == 0:
                save(ctx, arguments.checkpoints, state, epoch, step)
            if stopping:
                return
            if step == arguments.steps:
                break
        epoch += 1
    if ctx.rank == 0:
        print(f"done after step {step}", flush=True)


def save(ctx: workerlib.Context, folder: Path, state: dict[str, object], epoch: int, step: int) -> None:
    """Have each worker save into a folder, which gets its name only once it is whole."""
    unfinished = folder / "unfinished"
    unfinished.mkdir(parents=True, exist_ok=True)
    content = {name: part.state_dict() for name, part in state.items()}  # type: ignore[attr-defined]  # each has one
    torch.save({**content, "epoch": epoch, "step": step}, unfinished / f"rank-{ctx.rank}.pt")
    dist.barrier()
    if ctx.rank == 0:
        unfinished.rename(folder / f"step-{step:09}-of-{ctx.world_size}")
    dist.barrier()


def restore(ctx: workerlib.Context, folder: Path, state: dict[str, object]) -> tuple[int, int]:
    """Load the newest checkpoint, if there is one; return the epoch and the steps done."""
    newest = max(folder.glob(f"step-*-of-{ctx.world_size}"), default=None)
    if newest is None:
        return 0, 0
    saved = torch.load(newest / f"rank-{ctx.rank}.pt", map_location=ctx.device, weights_only=True)
    for name, part in state.items():
        part.load_state_dict(saved[name])  # type: ignore[attr-defined]  # as above
    return saved["epoch"], saved["step"]


def note(folder: Path | None, rank: int, epoch: int, step: int, numbers: Tensor) -> None:
    """Append the samples of a step of this worker to a file."""
    if folder is not None:
        with (folder / f"rank-{rank}.txt").open("a") as file:
            file.write(f"{step} {epoch} {' '.join(map(str, numbers.tolist()))}\n")


if __name__ == "__main__":
    main()
