"""The training of `kept` with DLRover's flash checkpoints: DDP, saved into shared memory every 10 steps.

python dlrover_training.py MEGABYTES FOLDER MARKS FINISH

Every 50 steps, and when a worker fails, its agent writes what is in the memory to the disk.
"""

from __future__ import annotations

import sys
from pathlib import Path
from threading import Event
from typing import Any

import torch
import torch.distributed as dist
from dlrover.trainer.torch.flash_checkpoint.checkpointer import StorageType
from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer
from recovery_training import STEP_S, Marks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 512
"""A layer of this width has a megabyte of parameters."""

SAVE_EVERY = 50
"""The steps between two checkpoints on a disk."""

KEEP_EVERY = 10
"""The steps between two that are saved into shared memory, as in its own reports. The next save must not come before
the agent has begun to write the one before: it gives that up then."""

COPIES = 2
"""SGD with momentum keeps a tensor for each parameter."""


def main(megabytes: int, folder: Path, marks: Marks, finish: Path) -> None:
    """Train until the file of the end is there."""
    marks.note("imported")
    dist.init_process_group("gloo")
    marks.note("connected")
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(max(1, megabytes // COPIES))))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, 0.9)
    checkpointer = DdpCheckpointer(str(folder / "flash"))
    step = -1
    found: dict[str, Any] = checkpointer.load_checkpoint()
    if found:
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        step = found["step"]
    wrapped = DistributedDataParallel(model)
    over, pause = torch.zeros(1), Event()
    while not over:
        step += 1
        optimizer.zero_grad()
        wrapped(torch.randn(4, WIDTH)).square().mean().backward()
        optimizer.step()
        over.fill_(finish.exists())
        dist.all_reduce(over)
        marks.note("step", step=step)
        if step % KEEP_EVERY == 0:
            kind = StorageType.MEMORY if step % SAVE_EVERY else StorageType.DISK
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            checkpointer.save_checkpoint(step, state, storage_type=kind)
        pause.wait(STEP_S)


if __name__ == "__main__":
    own_marks = Marks(Path(sys.argv[3]))
    own_marks.note("begun")
    main(int(sys.argv[1]), Path(sys.argv[2]), own_marks, Path(sys.argv[4]))
