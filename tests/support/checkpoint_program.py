"""A training that writes checkpoints of its own, as a program. Each rank draws how long each of its steps takes.

Arguments: the folder for checkpoints, and how many steps lie between two questions whether one is wanted. The training
ends when there is a file `enough` in the folder. A training of one rank also writes a checkpoint when there is a file
`wanted`, and takes it away.

A rank's checkpoint is a file `rank.step`. The training goes on from the newest step of which all ranks of a round had
written one.
"""

import random
import sys
import threading
from itertools import count
from pathlib import Path

import torch
import torch.distributed as dist

import workerlib


def main(folder: str, stride: str = "1") -> None:
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
            asked = step % int(stride) == 0 and ctx.should_checkpoint()
            wanted = not asked and ctx.world_size == 1 and (place / "wanted").exists()
            if wanted:
                (place / "wanted").unlink()
            if asked or wanted:
                (place / f"{ctx.rank}.{step}.checkpoint").touch()
                ctx.checkpointed(step)
            if is_last:
                break


def written(folder: Path) -> int:
    """Return the newest step of which there is a checkpoint of any rank; -1 if there is none."""
    return max((int(path.name.split(".")[1]) for path in folder.glob("*.checkpoint")), default=-1)


if __name__ == "__main__":
    main(*sys.argv[1:])
