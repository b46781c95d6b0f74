"""Hugging Face accelerate: `Accelerator()` finds the workers by itself, so `accelerate launch` is not needed.

    nodeclient join --standalone --nproc-per-node 2 -- python accelerate_loop.py --checkpoints /tmp/accelerate

A step counts only once it is in a checkpoint that is whole.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

import workerlib


def main() -> None:
    """Be one of the workers."""
    parser = argparse.ArgumentParser(description="Train with accelerate, elastically.")
    parser.add_argument("--checkpoints", type=Path, required=True, help="a folder that all nodes share")
    parser.add_argument("--steps", type=int, default=2000)
    arguments = parser.parse_args()

    accelerator = Accelerator(
        # Without GPUs this has to be said: else accelerate takes each worker for the only one, and says nothing.
        cpu=not torch.cuda.is_available(),
        # Of torchdata: `save_state` then saves the place in the epoch, too.
        dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=True),
    )
    torch.manual_seed(0)
    net = nn.Linear(1, 1)
    x = torch.randn(1024, 1)
    loader = DataLoader(TensorDataset(x, 3 * x + 2), batch_size=16, shuffle=True)
    model, optimizer, loader = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01), loader)
    step = restore(accelerator, arguments.checkpoints)
    if accelerator.is_main_process:  # `accelerator.print` would say it once for each node
        print(f"goes on after step {step} with {accelerator.num_processes} workers", flush=True)

    workerlib.should_stop()
    while step < arguments.steps:
        for inputs, targets in loader:
            optimizer.zero_grad()
            accelerator.backward(mse_loss(model(inputs), targets))
            optimizer.step()
            step += 1
            workerlib.step(step)
            stopping = step % 10 == 0 and workerlib.should_stop()
            if stopping or step % 100 == 0:
                save(accelerator, arguments.checkpoints, step)
            if stopping:
                return
            if step == arguments.steps:
                break
    if accelerator.is_main_process:
        print(f"done after step {step}", flush=True)
    accelerator.end_training()


def save(accelerator: Accelerator, folder: Path, step: int) -> None:
    """Save into a folder of this step. It has its name only once it is whole: a worker may be killed at any moment."""
    accelerator.save_state(folder / "unfinished")
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        (folder / "unfinished").rename(folder / f"step-{step:09}")


def restore(accelerator: Accelerator, folder: Path) -> int:
    """Load the newest checkpoint, if there is one, and return the steps done."""
    newest = max(folder.glob("step-*"), default=None)
    if newest is None:
        return 0
    accelerator.load_state(newest)
    return int(newest.name.removeprefix("step-"))


if __name__ == "__main__":
    main()
