"""Hugging Face's Trainer: reports its steps, saves before a planned stop, goes on from the newest whole checkpoint.

    nodeclient join --standalone --nproc-per-node 2 -- python transformers_trainer.py --checkpoints /tmp/transformers

The folder of the checkpoints is one that all nodes share.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import TrainerControl, TrainerState

from workerlib.integrations.transformers import ElasticTrainerCallback, last_checkpoint


class Counting(Dataset[dict[str, torch.Tensor]]):
    """Sequences of numbers, each one more than the one before."""

    def __len__(self) -> int:
        """Return how many there are."""
        return 256

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """Return one."""
        numbers = torch.arange(index, index + 8) % 64
        return {"input_ids": numbers, "labels": numbers}


class PrintSteps(TrainerCallback):
    """Prints where this round begins."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Print the step and the number of workers."""
        del control
        if state.is_world_process_zero:
            print(f"goes on after step {state.global_step} with {args.world_size} workers", flush=True)


def main() -> None:
    """Be one of the workers."""
    parser = argparse.ArgumentParser(description="Train with transformers, elastically.")
    parser.add_argument("--checkpoints", type=Path, required=True, help="a folder that all nodes share")
    parser.add_argument("--steps", type=int, default=1500)
    arguments = parser.parse_args()

    elastic = ElasticTrainerCallback()
    trainer = Trainer(
        GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=8, n_embd=8, n_layer=1, n_head=1)),
        TrainingArguments(
            str(arguments.checkpoints),
            max_steps=arguments.steps,
            save_steps=100,
            save_total_limit=2,
            report_to=[],
            disable_tqdm=True,
            logging_steps=500,
            use_cpu=not torch.cuda.is_available(),
        ),
        train_dataset=Counting(),
        callbacks=[elastic, PrintSteps()],
    )
    trainer.train(resume_from_checkpoint=last_checkpoint(arguments.checkpoints))
    if elastic.stopped:
        return
    trainer.save_model(str(arguments.checkpoints / "final"))
    if trainer.is_world_process_zero():
        print(f"done after step {trainer.state.global_step}", flush=True)


if __name__ == "__main__":
    main()
