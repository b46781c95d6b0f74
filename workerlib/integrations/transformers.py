"""A callback for the Trainer of Hugging Face transformers: reports steps, and saves before a planned stop.

    from workerlib.integrations.transformers import ElasticTrainerCallback, last_checkpoint

    trainer = Trainer(model, arguments, train_dataset=data, callbacks=[ElasticTrainerCallback()])
    trainer.train(resume_from_checkpoint=last_checkpoint(arguments.output_dir))

For transformers 5.23.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from workerlib import progress
from workerlib.stop import should_stop

STATE_FILE = "trainer_state.json"
"""The file that the Trainer writes last into a checkpoint (`_save_checkpoint` in transformers/trainer.py)."""

SENTINEL_FILE = "checkpoint-is-incomplete.txt"
"""The file that marks an unfinished checkpoint of `enable_jit_checkpoint` (transformers/trainer_jit_checkpoint.py)."""

_NAME = re.compile(r"checkpoint-(\d+)")
"""The Trainer's name of a checkpoint: a copy such as `checkpoint-500-best` is the user's own."""


class ElasticTrainerCallback(TrainerCallback):
    """Reports each step, and has all workers save and end when the node of any of them asks for a stop."""

    def __init__(self, every_n_steps: int = 10) -> None:
        """Check every `every_n_steps` steps whether to stop; a check is a collective."""
        self.every_n_steps = every_n_steps
        self.stopped = False
        """Whether `train` has returned because a node asked for a stop, and not because training is over."""

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Announce that steps will be reported: before the first one, the job counts as starting.

        Raises `RuntimeError` if transformers does not see the other workers; it does not warn of that itself.
        """
        del state, control
        workers = int(os.environ.get("WORLD_SIZE", "1"))
        if args.world_size != workers:
            raise RuntimeError(
                f"transformers sees {args.world_size} of the {workers} workers, so each would train for itself: on "
                "hosts without GPUs give TrainingArguments use_cpu=True"
            )
        progress.announce()

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Handle SIGTERM from here on, instead of dying of it."""
        del args, state, control
        should_stop()  # its first call installs the handlers; `on_step_end` acts on a stop

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Report the step, and save and end if any worker was asked to stop."""
        del args
        progress.step(state.global_step)
        if state.global_step % self.every_n_steps == 0 and should_stop():
            self.stopped = control.should_save = control.should_training_stop = True


def last_checkpoint(folder: str | os.PathLike[str]) -> str | None:
    """Return the newest whole checkpoint in the output folder of a Trainer, to resume from; None if there is none.

    `resume_from_checkpoint=True` raises an error without a checkpoint. It also takes a checkpoint that is incomplete
    because the worker was killed, so that each restart fails alike.
    """
    found = ((_NAME.fullmatch(path.name), path) for path in Path(folder).glob("checkpoint-*"))
    checkpoints = {int(name[1]): path for name, path in found if name}
    return next(
        (str(checkpoints[step]) for step in sorted(checkpoints, reverse=True) if _is_whole(checkpoints[step])), None
    )


def _is_whole(checkpoint: Path) -> bool:
    try:
        json.loads((checkpoint / STATE_FILE).read_bytes())
    except (OSError, ValueError):
        return False
    return not (checkpoint / SENTINEL_FILE).exists()
