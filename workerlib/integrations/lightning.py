"""A callback for Lightning's Trainer: reports steps, saves before a planned stop, and keeps state.

    from workerlib.integrations.lightning import ElasticCallback

    saver = ModelCheckpoint(dirpath=folder, every_n_train_steps=200, save_last=True)
    trainer = Trainer(
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        callbacks=[saver, ElasticCallback(f"{folder}/last.ckpt")],
    )
    trainer.fit(model, ckpt_path="last")

With the context of `workerlib.init()` it also keeps the state of each step, so that a killed worker costs none:

    with workerlib.init() as ctx:
        trainer = Trainer(..., callbacks=[saver, ElasticCallback(f"{folder}/last.ckpt", ctx)])
        trainer.fit(model, ckpt_path="last")

Tried with Lightning 2.6.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.exceptions import SIGTERMException

from workerlib import progress
from workerlib.init import Context
from workerlib.stop import should_stop

WORLD_SIZE = "world_size"
"""The key of the number of workers in the state of Lightning's loops; Lightning ignores it."""


class ElasticCallback(Callback):
    """Reports each step, and has all workers save and end when the node of any of them asks for a stop."""

    def __init__(self, path: str | os.PathLike[str], ctx: Context | None = None, *, every_n_steps: int = 10) -> None:
        """Check every `every_n_steps` steps for a planned stop, by a collective, and save at `path` then.

        With a context, the state of each step is kept, and training resumes from it instead of a checkpoint.
        """
        self.path = path
        self.ctx = ctx
        self.every_n_steps = every_n_steps
        self._step = 0
        """The last step that is done."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Announce that steps will be reported. Until the first one the job counts as starting."""
        del trainer, pl_module
        if stage == "fit":
            progress.announce()

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore the state that was kept, if there is any."""
        if self.ctx is None:
            return
        objects: dict[str, Any] = {"model": trainer.strategy.model or pl_module, "loops": _Loops(trainer)}
        objects |= {f"optimizer{number}": optimizer for number, optimizer in enumerate(trainer.optimizers)}
        objects |= {
            f"scheduler{number}": config.scheduler for number, config in enumerate(trainer.lr_scheduler_configs)
        }
        if self.ctx.keep(**objects) >= 0:
            # After this hook, Lightning would restore optimizers and loops from the checkpoint, which is older.
            trainer._checkpoint_connector._loaded_checkpoint.clear()  # noqa: SLF001 - there is no other way

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Record the number of workers in a checkpoint."""
        del pl_module
        checkpoint["loops"]["fit_loop"][WORLD_SIZE] = trainer.world_size

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Have Lightning resume at the right place in the data."""
        del pl_module
        _correct_place(checkpoint["loops"]["fit_loop"], trainer.world_size)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record SIGTERM from here on, and the step that training resumes from.

        This replaces Lightning's handler, which calls a collective: if the signal reaches the workers in different
        steps, they would wait for each other for ever.
        """
        del pl_module
        self._step = trainer.global_step
        should_stop()  # the first call installs our handler

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Report the step if this batch is its last one; then save and end if any worker was asked to stop.

        If `ctx.keep` was called, `progress.step` also keeps the state of the step.

        A step has several batches with `accumulate_grad_batches`; gradients between them are not kept. Raises the
        exception with which Lightning itself ends at SIGTERM. `trainer.should_stop` would run the whole validation
        first, be ignored before `min_epochs`, and let the script go on after `fit` as if training was over.
        """
        del pl_module
        if trainer.global_step == self._step:
            return
        self._step = trainer.global_step
        progress.step(self._step)
        if self._step % self.every_n_steps == 0 and should_stop():
            trainer.save_checkpoint(self.path)
            raise SIGTERMException


class _Loops:
    """The position of a Trainer in its training, for `ctx.keep`, with the state of its data loader."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        """Return the position."""
        return {**self._trainer.fit_loop.state_dict(), WORLD_SIZE: self._trainer.world_size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a position."""
        _correct_place(state, self._trainer.world_size)
        self._trainer.fit_loop.load_state_dict(state)


def _correct_place(state: dict[str, Any], world_size: int) -> None:
    """Correct a place that is at the end of an epoch, or was recorded with another number of workers.

    After the last batch, the epoch counts as over, however many batches it has now. The position of a stateful data
    loader is dropped, since the loader is at its end, and the next epoch would have no batches.

    In the middle of an epoch, the position is dropped if the number of workers has changed: the loader would fail if it
    has done more batches than an epoch has now. Without its position it gives the first samples of the epoch again, as
    a plain `DataLoader` always does.
    """
    batches = state["epoch_loop.batch_progress"]
    if batches["is_last_batch"]:
        # Lightning begins a new epoch if as many batches are done as an epoch has now, which may be more than before.
        batches["current"] = dict.fromkeys(batches["current"], sys.maxsize)
    if batches["is_last_batch"] or state.get(WORLD_SIZE, world_size) != world_size:
        state["state_dict"].pop("combined_loader", None)
