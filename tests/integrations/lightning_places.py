"""Trains with Lightning in this process, as one of so many workers, and notes the place of each batch in the data."""

from __future__ import annotations

from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DistributedSampler, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from workerlib.integrations.lightning import ElasticCallback

Place = tuple[int, int, int]
"""The epoch, the number of the batch, and the first sample in it."""


class Noting(pl.LightningModule):  # type: ignore[misc]  # Lightning may be missing
    """Notes the places of 16 samples, in batches of two."""

    def __init__(self, workers: int) -> None:
        super().__init__()
        self.net = nn.Linear(1, 1)
        self.workers = workers
        self.places: list[Place] = []

    def train_dataloader(self) -> StatefulDataLoader[tuple[Tensor, ...]]:
        """Return the batches of the first worker."""
        data = TensorDataset(torch.arange(16.0).reshape(16, 1))
        sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(data, self.workers, 0, shuffle=False)
        return StatefulDataLoader(data, batch_size=2, sampler=sampler)

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        """Note the place of a batch."""
        self.places.append((self.trainer.current_epoch, index, int(batch[0][0].item())))
        loss: Tensor = self.net(batch[0]).mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.01)


def fit(workers: int, steps: int, folder: Path, checkpoint: Path | None = None) -> list[Place]:
    """Train, with a checkpoint after each step in a file of its number; return the places."""
    saver = ModelCheckpoint(folder, "{step}", every_n_train_steps=1, save_top_k=-1, auto_insert_metric_name=False)
    trainer = pl.Trainer(
        max_steps=steps,
        accelerator="cpu",
        callbacks=[saver, ElasticCallback(folder / "last.ckpt")],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Noting(workers)
    trainer.fit(module, ckpt_path=checkpoint)
    return module.places
