"""A training that writes checkpoints of its own, as a program. Each rank draws how long each of its steps takes.

Arguments: the folder for checkpoints, how many steps lie between two questions whether one is wanted, and how many
seconds a checkpoint takes to write. The training ends when there is a file `enough` in the folder. A training of one
rank also writes a checkpoint when there is a file `wanted`, and takes it away.

A rank's checkpoint is a file `rank.step`, which is complete or not there. The training goes on from the newest step of
which all ranks of a round had written one.
"""

import random
import sys
import threading
from itertools import count
from pathlib import Path

import torch
import torch.distributed as dist

import workerlib


def main(folder: str, stride: str = "1", write_s: str = "0") -> None:
    """Train."""
    place = Path(folder)
    with workerlib.init() as ctx:
        chance = random.Random(ctx.rank)  # noqa: S311 - no secret
        total = torch.tensor(written(place))
        dist.broadcast(total, src=0)
        done = int(total)
        with (place / f"{ctx.rank}.begins").open("a") as notes:
            notes.write(f"{ctx.round} {ctx.rank} {done} {ctx.environment.reason!r}\n")
        for step in count(done + 1):
            threading.Event().wait(chance.random() * 0.02)
            is_last = torch.tensor(int((place / "enough").exists()))
            dist.all_reduce(is_last)  # no rank can be a step ahead of another
            ctx.step(step)
            if step % int(stride) == 0 and ctx.should_checkpoint():
                write(place, ctx.rank, step, float(write_s))
                ctx.checkpointed(step)
            elif ctx.world_size == 1 and (place / "wanted").exists():
                (place / "wanted").unlink()
                write(place, ctx.rank, step, float(write_s))
                ctx.checkpointed(step)
            if is_last:
                break


def write(folder: Path, rank: int, step: int, seconds: float) -> None:
    """Write a checkpoint, slowly."""
    unfinished = folder / f"{rank}.unfinished"
    with unfinished.open("wb", buffering=0) as file:
        for _ in range(int(seconds * 10)):
            file.write(bytes(1_000_000))
            threading.Event().wait(0.1)
    unfinished.replace(folder / f"{rank}.{step}.checkpoint")


def written(folder: Path) -> int:
    """Return the newest step of which there is a checkpoint of any rank; -1 if there is none."""
    return max((int(path.name.split(".")[1]) for path in folder.glob("*.checkpoint")), default=-1)


if __name__ == "__main__":
    main(*sys.argv[1:])
