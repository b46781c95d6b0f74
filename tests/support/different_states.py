"""Trainings whose ranks come to have different states; each rank notes with which weights a round begins.

Arguments: the folder for the notes, and `on` if no rank is killed and training does not end.
"""

import itertools
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import workerlib
from tests.support.kept_training import digest_of

SPOILED_AT = 5
"""The step at which the weights of rank 1 become others than those of rank 0, as by a collective that went wrong."""


def train(folder: Path, *, on: bool) -> None:
    """Train alike on all ranks, until the weights of rank 1 are spoiled; go on, or kill rank 2 in the next step."""
    with workerlib.init("gloo") as ctx:
        torch.manual_seed(7)
        model = nn.Linear(4, 4)
        optimizer = torch.optim.AdamW(model.parameters())
        done = ctx.keep(model=model, optimizer=optimizer)
        (folder / f"{ctx.round}-{ctx.rank}").write_text(f"{done} {digest_of(model.state_dict())}")
        for step in itertools.count(done + 1) if on else range(done + 1, 8):
            first = ctx.round == 1
            if first and step == SPOILED_AT + 1 and not on:
                dist.barrier()  # all have done that step, each with its own weights
                if ctx.rank == 2:
                    os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            model(torch.ones(1, 4)).square().sum().backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            if first and ctx.rank == 1 and step == SPOILED_AT:
                with torch.no_grad():
                    model.weight[0, 0] += 1e-3
            ctx.step(step)


if __name__ == "__main__":
    train(Path(sys.argv[1]), on="on" in sys.argv[2:])
