"""Trainings whose ranks come to have different states; each rank notes with which weights a round begins.

Arguments: the folder for the notes, and `on` if the ranks are alike in round 1, and train on with different states in
round 2 until that is stopped.
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
"""The step of a round, from 0, at which the weights of rank 1 become others than those of rank 0, as by a collective
that went wrong."""


def train(folder: Path, *, on: bool) -> None:
    """Train alike on all ranks, until the weights of rank 1 are spoiled; in round 1, rank 2 is killed after that."""
    with workerlib.init("gloo") as ctx:
        torch.manual_seed(7)
        model = nn.Linear(4, 4)
        optimizer = torch.optim.AdamW(model.parameters())
        done = ctx.keep(model=model, optimizer=optimizer)
        wrong = done + 1 + SPOILED_AT
        (folder / f"{ctx.round}-{ctx.rank}").write_text(f"{done} {digest_of(model.state_dict())}")
        spoils, goes_on = ctx.round == (2 if on else 1), on and ctx.round == 2
        for step in itertools.count(done + 1) if goes_on else range(done + 1, wrong + 3):
            if ctx.round == 1 and step == wrong + 1:
                dist.barrier()  # all have done that step, each with its own weights
                if ctx.rank == 2:
                    os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            model(torch.ones(1, 4)).square().sum().backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            if spoils and ctx.rank == 1 and step == wrong:
                with torch.no_grad():
                    model.weight[0, 0] += 1e-3
            ctx.step(step)


if __name__ == "__main__":
    train(Path(sys.argv[1]), on="on" in sys.argv[2:])
