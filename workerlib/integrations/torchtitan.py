"""A trainer for torchtitan: reports steps, and saves before a planned stop.

Write a configuration function that wraps torchtitan's, and name it with `--module` and `--config`:

    from torchtitan.models.llama3.config_registry import llama3_8b
    from workerlib.integrations.torchtitan import elastic

    def llama3_8b_elastic():
        return elastic(llama3_8b())

Tried with torchtitan 0.3.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from torchtitan.trainer import Trainer

from workerlib import progress
from workerlib.stop import should_stop

EVERY_N_STEPS = 10
"""How many steps are between two checks whether to stop. A check is a collective, and has the host wait for the GPU."""


class ElasticTrainer(Trainer):
    """Reports each step, and has all workers save and end when the node of any of them asks for a stop."""

    @dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):
        """The configuration of torchtitan's own trainer; by this class torchtitan finds `ElasticTrainer`."""

    def __init__(self, config: Config) -> None:
        """Announce that steps will be reported. Until the first one the job counts as starting."""
        progress.announce()
        super().__init__(config)

    def train(self) -> None:
        """Record SIGTERM from here on, instead of dying of it, and train."""
        should_stop()
        super().train()

    def train_step(self, data_iterator: Iterator[Any]) -> None:
        """Report the step."""
        super().train_step(data_iterator)
        progress.step(self.step)

    def should_continue_training(self) -> bool:
        """Whether to do another step; if any worker was asked to stop, save and return False."""
        if self.step % EVERY_N_STEPS == 0 and should_stop():
            self._save()
            return False
        return bool(super().should_continue_training())

    def _save(self) -> None:
        """Save the whole state, as torchtitan does between steps. Its own save at the end would have only the model."""
        # At a multiple of its interval, torchtitan has saved this step already.
        if self.config.checkpoint.enable and self.step % self.checkpointer.interval != 0:
            self.checkpointer.interval = 1  # so that a save at this step is due
            self.checkpointer.save(self.step)
        self.checkpointer.maybe_wait_for_saving()


def elastic(config: Trainer.Config) -> ElasticTrainer.Config:
    """Return a configuration of torchtitan's trainer as one for `ElasticTrainer`."""
    return ElasticTrainer.Config(**{field.name: getattr(config, field.name) for field in fields(config)})
