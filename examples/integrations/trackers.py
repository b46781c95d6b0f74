"""TensorBoard and Weights & Biases: one curve for all rounds, in which no step is missing or there twice.

    nodeclient join --standalone --nproc-per-node 2 -- python trackers.py --folder /tmp/trackers

Only rank 0 writes. Without a network wandb is offline (WANDB_MODE=offline), and `wandb sync` sends the runs later.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import wandb
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.tensorboard import SummaryWriter

import workerlib


class Trackers:
    """The files to which rank 0 writes its curves."""

    def __init__(self, ctx: workerlib.Context, folder: Path, step: int) -> None:
        """Open them for a round that goes on after a step."""
        # Steps after the checkpoint are done again, so TensorBoard has to forget their old points.
        self._writer = SummaryWriter(folder / "tensorboard", purge_step=step + 1)
        # One run of the job is one run of wandb, whatever its rounds.
        wandb.init(dir=folder, project="line", id=ctx.environment.run, resume="allow")

    def log(self, step: int, loss: float) -> None:
        """Add a point to the curve."""
        self._writer.add_scalar("loss", loss, step)
        wandb.log({"loss": loss}, step=step)

    def flush(self) -> None:
        """Write the points in memory, since the next round goes on from here; TensorBoard would wait two minutes."""
        self._writer.flush()

    def close(self) -> None:
        """Write all that is left."""
        self._writer.close()
        wandb.finish()


def main() -> None:
    """Be one of the workers."""
    parser = argparse.ArgumentParser(description="Train, and draw curves.")
    parser.add_argument("--folder", type=Path, required=True, help="for the checkpoint and the curves, on all nodes")
    parser.add_argument("--steps", type=int, default=3000)
    arguments = parser.parse_args()
    with workerlib.init() as ctx:
        train(ctx, arguments)


def train(ctx: workerlib.Context, arguments: argparse.Namespace) -> None:
    """Go on from the checkpoint, until all steps are done or the workers are asked to stop."""
    model = nn.Linear(1, 1).to(ctx.device)
    path = arguments.folder / "model.pt"
    step = 0
    if path.exists():
        saved = torch.load(path, map_location=ctx.device, weights_only=True)
        model.load_state_dict(saved["model"])
        step = saved["step"]
    replica = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    trackers = Trackers(ctx, arguments.folder, step) if ctx.rank == 0 else None
    if trackers:
        print(f"goes on after step {step} with {ctx.world_size} workers", flush=True)

    stopping = ctx.should_stop()
    while step < arguments.steps and not stopping:
        x = torch.randn(16, 1, device=ctx.device)
        loss = mse_loss(replica(x), 3 * x + 2)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        step += 1
        ctx.step(step)
        stopping = step % 10 == 0 and ctx.should_stop()
        if trackers:
            trackers.log(step, loss.item())
            if stopping or step % 100 == 0:
                trackers.flush()
                torch.save({"model": model.state_dict(), "step": step}, path.with_suffix(".unfinished"))
                path.with_suffix(".unfinished").replace(path)
    if trackers:
        trackers.close()
        if not stopping:
            print(f"done after step {step}", flush=True)


if __name__ == "__main__":
    main()
