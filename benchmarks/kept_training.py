"""The training of `kept`: a state of so many megabytes, kept in memory or written by `dcp.save` every 50 steps.

Its arguments are `MODE MEGABYTES FOLDER MARKS FINISH`. MODE is `keep` or `sharded` (kept too, with FSDP2 and AdamW), or
`in-place` (kept, by workers that outlive a round where they can). `dcp-keep` and `dcp-sharded` train the same and write
checkpoints, `bare-keep` and `bare-sharded` keep nothing. The megabytes are those of parameters and optimizer state
together.

What a mode does not need is not imported in it, as in a script that one would write for it: to import torch's
checkpoints takes as long as a whole restart of warm workers.
"""

# ruff: noqa: PLC0415 - see above

import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import torch
import torch.distributed as dist
from recovery_training import STEP_S, Marks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import workerlib

WIDTH = 512
"""A layer of this width has a megabyte of parameters."""

SAVE_EVERY = 50
"""The steps between two checkpoints on a disk."""


def main(mode: str, megabytes: int, folder: Path, marks: Marks, finish: Path) -> None:
    """Train until the file of the end is there."""
    sharded = mode.endswith("sharded")
    marks.note("imported")
    with workerlib.init() as ctx:
        marks.note("connected")
        model: nn.Module = network(megabytes, sharded=sharded)
        if sharded:
            from torch.distributed.fsdp import fully_shard

            fully_shard(model)
        else:
            model = DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(model.parameters()) if sharded else torch.optim.SGD(model.parameters(), 1e-3, 0.9)
        done = -1
        dcp = mode.startswith("dcp")
        if dcp:
            done = load(folder, model, optimizer)
        elif not mode.startswith("bare"):
            done = ctx.keep(model=model, optimizer=optimizer)
        for step in train(model, optimizer, done, marks, finish):
            ctx.step(step)
            if dcp and step % SAVE_EVERY == 0:
                save(folder / f"step-{step}", model, optimizer)


def main_in_place(megabytes: int, marks: Path, finish: Path) -> None:
    """Train as `main` does, in one round after the other."""
    model = network(megabytes, sharded=False)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, 0.9)
    for ctx in workerlib.rounds():
        with ctx:
            replica = DistributedDataParallel(model)
            done = ctx.keep(model=replica, optimizer=optimizer)
            for step in train(replica, optimizer, done, Marks(marks), finish):
                ctx.step(step)


def network(megabytes: int, *, sharded: bool) -> nn.Sequential:
    """Return a network that has so many megabytes with the state of its optimizer."""
    copies = 3 if sharded else 2  # AdamW keeps two tensors for each parameter, SGD with momentum one
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(max(1, megabytes // copies))))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, done: int, marks: Marks, finish: Path) -> Iterator[int]:
    """Yield each step that is done, from the one after `done` on, until the file of the end is there."""
    over, pause, step = torch.zeros(1), Event(), done
    while not over:
        step += 1
        optimizer.zero_grad()
        model(torch.randn(4, WIDTH)).square().mean().backward()
        optimizer.step()
        over.fill_(finish.exists())
        dist.all_reduce(over)
        marks.note("step", step=step)
        yield step
        pause.wait(STEP_S)


def save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write a checkpoint."""
    from torch.distributed.checkpoint import state_dict_saver

    state_dict_saver.save(state_of(model, optimizer), checkpoint_id=path)


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the state as torch's documentation writes it down."""
    from torch.distributed.checkpoint.state_dict import get_state_dict

    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))


def load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the newest checkpoint that is whole; return its step, -1 if there is none."""
    from torch.distributed.checkpoint import state_dict_loader
    from torch.distributed.checkpoint.state_dict import set_state_dict

    whole = [int(path.parent.name.partition("-")[2]) for path in folder.glob("step-*/.metadata")]
    if not whole:
        return -1
    state = state_of(model, optimizer)
    state_dict_loader.load(state, checkpoint_id=folder / f"step-{max(whole)}")
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return max(whole)


if __name__ == "__main__":
    if sys.argv[1] == "in-place":
        main_in_place(int(sys.argv[2]), Path(sys.argv[4]), Path(sys.argv[5]))
    else:
        own_marks = Marks(Path(sys.argv[4]))
        own_marks.note("begun")
        main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), own_marks, Path(sys.argv[5]))
