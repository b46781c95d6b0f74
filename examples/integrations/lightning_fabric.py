"""Lightning Fabric: a training loop of the script's own, with the same habits as in digits.py.

    nodeclient join --standalone --nproc-per-node 2 -- python lightning_fabric.py --checkpoints /tmp/fabric

The folder of the checkpoints is one that all nodes share.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.nn.functional import mse_loss

import workerlib


def main() -> None:
    """Be one of the workers."""
    parser = argparse.ArgumentParser(description="Train with Lightning Fabric, elastically.")
    parser.add_argument("--checkpoints", type=Path, required=True, help="a folder that all nodes share")
    parser.add_argument("--steps", type=int, default=3000)
    arguments = parser.parse_args()

    fabric = Fabric(
        devices=int(os.environ["LOCAL_WORLD_SIZE"]), num_nodes=int(os.environ["GROUP_WORLD_SIZE"]), strategy="ddp"
    )
    fabric.launch()
    net = nn.Linear(1, 1)
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.01))
    state = {"model": model, "optimizer": optimizer, "step": 0}
    path = arguments.checkpoints / "fabric.ckpt"
    if path.exists():
        fabric.load(path, state)
    step = state["step"]
    if fabric.is_global_zero:  # `fabric.print` would print it once for each node
        print(f"goes on after step {step} with {fabric.world_size} workers", flush=True)

    workerlib.should_stop()
    while step < arguments.steps:
        x = torch.randn(16, 1, device=fabric.device)
        loss = mse_loss(model(x), 3 * x + 2)
        optimizer.zero_grad()
        fabric.backward(loss)
        optimizer.step()
        step += 1
        workerlib.step(step)
        stopping = step % 10 == 0 and workerlib.should_stop()
        if stopping or step % 100 == 0:
            fabric.save(path, {**state, "step": step})
        if stopping:
            return
    if fabric.is_global_zero:
        print(f"done after step {step}", flush=True)


if __name__ == "__main__":
    main()
