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
from torch.utils.data import DistributedSampler, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import workerlib
from workerlib.integrations.lightning import ElasticCallback


class Line(pl.LightningModule):
    """Learns y = 3x + 2."""

    def __init__(self, data: TensorDataset) -> None:
        super().__init__()
        self.net = nn.Linear(1, 1)
        self.data = data

    def train_dataloader(self) -> StatefulDataLoader[tuple[Tensor, ...]]:
        """Return the batches of this worker.

        Lightning saves its place in the epoch. With a DataLoader of torch an epoch would begin again, and with a
        sampler that Lightning makes, the rest of the epoch would come in the order of epoch 0.
        """
        sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(self.data)
        sampler.set_epoch(self.trainer.current_epoch)
        return StatefulDataLoader(self.data, batch_size=16, sampler=sampler)

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
    model = Line(TensorDataset(x, 3 * x + 2))
    trainer.fit(model, ckpt_path="last")
    if trainer.is_global_zero:
        weight, bias = (parameter.item() for parameter in model.parameters())
        print(f"done after step {trainer.global_step}: learned y = {weight:.6f}x + {bias:.6f}", flush=True)


if __name__ == "__main__":
    main()
