"""A pipeline of two stages, each a plain module of its rank; it notes the state of each rank at the end.

Arguments: `alike`, where both stages have the same names, sizes and first weights, or `named`, where they keep the
names of the whole model; the folder for its notes; and any number of kills as ROUND:RANK:STEP:POINT.
"""

import os
import signal
import sys
from pathlib import Path
from threading import Event

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

import workerlib
from tests.support.kept_training import STEP_S, digest_of
from workerlib.keeping import intervals

STEPS = 60
POINTS = ("before", "backward", "optimizer", "between", "after")
"""Where in a step a worker may be killed."""


class Named(nn.Module):
    """A stage whose layer has the number that it has in the whole model."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(number): nn.Linear(8, 8)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what its layer makes of the input."""
        [layer] = self.layers.values()
        result: torch.Tensor = layer(x)
        return result.tanh()


def train(kind: str, folder: Path, *kills: str) -> None:
    """Train to the last step, and be killed where that is wanted."""
    torch.set_num_threads(1)
    intervals.SHARE_MAX = 1e9  # each step is saved, however busy the machine is
    with workerlib.init("gloo") as ctx:

        def at(point: str) -> None:
            if f"{ctx.round}:{ctx.rank}:{step}:{point}" in kills:
                os.kill(os.getpid(), signal.SIGKILL)

        torch.manual_seed(7)
        module = nn.Sequential(nn.Linear(8, 8), nn.Tanh()) if kind == "alike" else Named(ctx.rank)
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
        optimizer.register_step_post_hook(lambda *_: at("optimizer"))
        stage = PipelineStage(module, ctx.rank, 2, torch.device("cpu"))
        schedule = ScheduleGPipe(stage, 2, loss_fn=lambda y, wanted: (y - wanted).square().mean())
        done = ctx.keep(module=module, optimizer=optimizer)
        for step in range(done + 1, STEPS):
            at("before")
            x, wanted = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            if ctx.rank == 0:
                schedule.step(x)
            else:
                schedule.step(target=wanted)
            at("backward")
            optimizer.step()
            at("between")
            ctx.step(step)
            at("after")
            Event().wait(STEP_S)
        (folder / f"{ctx.rank}").write_text(digest_of(module.state_dict(), optimizer.state_dict()["state"]))


if __name__ == "__main__":
    train(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
