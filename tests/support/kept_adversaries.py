"""A training whose step has several parts: two networks with an optimizer each, batches summed up, and an evaluation.

So a step is not whole for most of its time, and a worker may die in each part of it. Both networks have dropout and
batch norm, and the evaluation is made without gradients, but in the mode of training: it changes the state too.
"""

import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import swa_utils

import workerlib
from tests.support.kept_training import digest_of, digest_of_own, note_begin
from workerlib.keeping import intervals, keeper

FEATURES = 9

PARTS = (
    "first batch",
    "critic gradients",
    "generator forward",
    "generator gradients",
    "generator optimizer",
    "evaluated",
)
"""The points of a step at which a worker may be killed, and its own state of the step is known to the last bit."""

EVALUATING = "evaluating"
"""The point at which that state is not known: the others come to the end of the step, and this worker has never had a
state of its own there. Each even step has an evaluation."""


def train_adversaries(folder: Path, steps: int, kill: tuple[int, int, str] = (-1, -1, "")) -> None:
    """Train under DDP; the worker of a rank may be killed in a step, at one of the points.

    It notes what `train_ddp` does; a digest is that of the chain, of the buffers, and of all that is a rank's own.
    """
    intervals.SHARE_MAX = 1e6  # each step is saved, where steps are saved at an interval
    keeper.WAIT_S = 0.2
    with workerlib.init() as ctx:
        generator, critic = (DistributedDataParallel(_network(seed)) for seed in (7, 8))
        torch.manual_seed(ctx.rank)
        random.seed(ctx.rank)
        np.random.seed(ctx.rank)  # noqa: NPY002 - the legacy random numbers are what many scripts use
        average = swa_utils.AveragedModel(generator.module)  # counts its updates in a buffer
        makers = torch.optim.AdamW(generator.parameters(), lr=0.01)
        judges = torch.optim.SGD(critic.parameters(), lr=0.01, momentum=0.9)
        counters: dict[str, Any] = {"chain": ""}

        def at(point: str) -> None:
            if kill == (ctx.rank, step, point):
                os.kill(os.getpid(), signal.SIGKILL)

        kept = {"generator": generator, "critic": critic, "average": average, "makers": makers, "judges": judges}
        done = ctx.keep(**kept, counters=counters)
        makers.register_step_post_hook(lambda *_: at("generator optimizer"))
        both = nn.ModuleList([generator.module, critic.module])

        def own() -> str:
            return f"{digest_of(dict(both.named_buffers()))}-{digest_of_own(both)}"

        note_begin(folder, ctx, done, f"{counters['chain']}-{own()}")
        with (folder / f"{ctx.rank}.txt").open("a") as notes:
            for step in range(done + 1, steps):
                judges.zero_grad()
                with torch.no_grad():
                    made = generator(torch.randn(8, FEATURES))
                with critic.no_sync():
                    critic(made).mean().backward()
                at("first batch")
                (-critic(torch.randn(8, FEATURES) + 1).mean()).backward()
                at("critic gradients")
                judges.step()
                makers.zero_grad()
                made = generator(torch.randn(8, FEATURES))
                at("generator forward")
                (-critic.module(made).mean()).backward()
                at("generator gradients")
                makers.step()
                average.update_parameters(generator.module)
                if step % 2 == 0:
                    with torch.no_grad():
                        generator.module(torch.randn(8, FEATURES))
                        at(EVALUATING)
                        generator.module(torch.randn(8, FEATURES))
                at("evaluated")
                weights = [*both.parameters(), *average.module.parameters(), average.n_averaged]
                counters["chain"] = digest_of(
                    *(counters["chain"], weights, makers.state_dict()["state"], judges.state_dict()["state"])
                )
                noted = f"{ctx.round} {ctx.rank} {step} {counters['chain']}-{own()}\n"
                ctx.step(step)
                notes.write(noted)
                notes.flush()


def _network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(FEATURES, 12), nn.BatchNorm1d(12), nn.Dropout(0.3), nn.ReLU(), nn.Linear(12, FEATURES)
    )
