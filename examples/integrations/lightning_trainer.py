"""Lightning's Trainer: keeps the state of each step, and falls back on its checkpoints.

    nodeclient join --standalone --nproc-per-node 2 -- python lightning_trainer.py --checkpoints /tmp/lightning

The folder of the checkpoints is one that all nodes share. A new run goes on from the newest of them.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import workerlib
from workerlib.integrations.lightning import ElasticCallback


class Line(pl.LightningModule):
    """Learns y = 3x + 2."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(1, 1)

    def on_train_start(self) -> None:
        """Print where this round begins."""
        if self.trainer.is_global_zero:
            print(f"goes on after step {self.global_step} with {self.trainer.world_size} workers", flush=True)

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        """Return the loss of a batch."""
        del index
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main() -> None:
    """Be one of the workers."""
    parser = argparse.ArgumentParser(description="Train with Lightning, elastically.")
    parser.add_argument("--checkpoints", type=Path, required=True, help="a folder that all nodes share")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--accumulate", type=int, default=1, metavar="N", help="sum the gradients of N batches")
    arguments = parser.parse_args()

    # This comes first, since Lightning uses an existing process group.
    with workerlib.init() as ctx:
        train(ctx, arguments.checkpoints, arguments.steps, arguments.accumulate)


def train(ctx: workerlib.Context, checkpoints: Path, steps: int, accumulate: int) -> None:
    """Go on from the newest state, until all steps are done or the workers are asked to stop."""
    torch.manual_seed(0)
    x = torch.randn(1024, 1)
    trainer = pl.Trainer(
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        max_steps=steps,
        accumulate_grad_batches=accumulate,
        callbacks=[
            ModelCheckpoint(checkpoints, every_n_train_steps=100, save_last=True),
            ElasticCallback(checkpoints / "last.ckpt", ctx),
        ],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    # Lightning saves its place in the epoch. With a DataLoader of torch an epoch would begin again.
    loader = StatefulDataLoader(TensorDataset(x, 3 * x + 2), batch_size=16, shuffle=True)
    trainer.fit(Line(), loader, ckpt_path="last")
    if trainer.is_global_zero:
        print(f"done after step {trainer.global_step}", flush=True)


if __name__ == "__main__":
    main()
