r"""Train in processes that outlive the loss of another worker: each round begins in place.

    nodeclient join --coord HOST --job-id rounds --nnodes 1:4 --max-restarts 3 --preload torch -- \
        python examples/in_place.py

Start it on some hosts, then on one more, or end one: the workers that are left print that they are the same processes,
and go on after the last step. A script needs three habits for that:

* Objects that outlive a round are made once, outside of `train`: here the model and the optimizer.
* Objects of one round are made in `train`, which is called again in each round: here the wrapped model.
* `ctx.keep` brings every worker to the step that all have in common. A new worker gets the state from another one, so
  `train` is the same for new and old processes.

The network learns y = 3x + 2, as in ddp.py. docs/rounds-in-place.md says when a worker cannot stay.
"""

from __future__ import annotations

import argparse
import os
from threading import Event

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import workerlib


@workerlib.elastic
def train(ctx: workerlib.Context, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, pause: float) -> None:
    """Train until all steps are done; called again with each round."""
    replica = DistributedDataParallel(model)
    begun = max(ctx.keep(model=replica, optimizer=optimizer), 0)
    worker = f"rank {ctx.rank} of {ctx.world_size} is process {os.getpid()}"
    print(f"round {ctx.round}: {worker}, and goes on after step {begun}", flush=True)
    for step in range(begun + 1, steps + 1):
        x = torch.randn(32, 1, device=ctx.device)
        loss = nn.functional.mse_loss(replica(x), 3 * x + 2)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        ctx.step(step)
        Event().wait(pause)


def main() -> None:
    """Run as one of the workers."""
    parser = argparse.ArgumentParser(description="Train one neuron on workers that come and go.")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--pause", type=float, default=0.1, help="seconds after each step, to have time to disturb it")
    arguments = parser.parse_args()
    device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(1, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, arguments.steps, arguments.pause)
    weight, bias = (parameter.item() for parameter in model.parameters())
    print(f"learned y = {weight:.2f}x + {bias:.2f}", flush=True)


if __name__ == "__main__":
    main()
