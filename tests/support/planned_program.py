"""A training whose ranks each have a shard of the state, as a program. Each rank draws how long its steps take.

Argument: the folder for its notes; the training ends when there is a file `enough` in it, and no round begins to train
while there is a file `hold` in it. Each rank appends `round rank
step digest` of its own shard to a file of its own, first of the step that it resumes from. Its digest is that of all
steps before, so a step that was left out or done twice shows.
"""

import random
import sys
from itertools import count
from pathlib import Path
from threading import Event

import torch
import torch.distributed as dist

import workerlib
from tests.support.kept_training import FEATURES, digest_of, note, shard, two_layers

STEP_S_MAX = 0.04
"""The longest that a rank takes before a step."""


def main(folder: str) -> None:
    """Train."""
    enough = Path(folder) / "enough"
    torch.set_num_threads(1)
    with workerlib.init() as ctx:
        model = two_layers()
        shard(model, ctx.world_size)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        data = torch.randn(64, FEATURES, generator=torch.Generator().manual_seed(1))
        chance = random.Random(ctx.rank)  # noqa: S311 - its own, so that what is kept does not depend on it
        done = ctx.keep(model=model, optimizer=optimizer)
        if done >= 0:
            note(Path(folder), ctx, done, digest_of([*model.parameters()]))
        while (Path(folder) / "hold").exists():
            Event().wait(STEP_S_MAX)
        for step in count(done + 1):
            Event().wait(chance.random() * STEP_S_MAX)
            optimizer.zero_grad()
            model(data[step % 8 :: 8]).square().mean().backward()
            optimizer.step()
            note(Path(folder), ctx, step, digest_of([*model.parameters()]))
            ctx.step(step)
            is_last = torch.tensor(int(enough.exists()))
            dist.all_reduce(is_last)  # no rank goes on alone
            if is_last:
                break


if __name__ == "__main__":
    main(*sys.argv[1:])
