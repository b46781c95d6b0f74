"""Hugging Face accelerate: `Accelerator()` finds the workers by itself, so `accelerate launch` is not needed.

    nodeclient join --standalone --nproc-per-node 2 -- python accelerate_loop.py --checkpoints /tmp/accelerate

No step is lost within a run: `ctx.keep` keeps the state of each one in the memory of the nodes. A new run goes on from
the newest checkpoint that is whole.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
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

    # This comes first, since accelerate uses an existing process group.
    with workerlib.init() as ctx:
        train(ctx, arguments.checkpoints, arguments.steps)


def train(ctx: workerlib.Context, checkpoints: Path, steps: int) -> None:
    """Go on from the newest state, until all steps are done or the workers are asked to stop."""
    # `cpu` is needed without GPUs: otherwise accelerate takes each worker for the only one, without a warning.
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    torch.manual_seed(0)
    net = nn.Linear(1, 1)
    x = torch.randn(1024, 1)
    data = TensorDataset(x, 3 * x + 2)
    model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
    # The loader is not prepared: accelerate would divide among the workers what the sampler has divided.
    sampler = workerlib.ElasticDistributedSampler(data, batch_size=32)
    loader = DataLoader(data, batch_sampler=sampler)
    accelerator.register_for_checkpointing(sampler)
    step, source = ctx.keep(model=model, optimizer=optimizer, sampler=sampler), "memory"
    if step < 0:
        step, source = restore(accelerator, checkpoints), "the disk"
    if accelerator.is_main_process:  # `accelerator.print` would print it once for each node
        print(f"goes on after step {step} with {ctx.world_size} workers, from {source}", flush=True)

    epoch = sampler.epoch
    while step < steps:
        sampler.set_epoch(epoch)
        for micro, (inputs, targets) in zip(sampler.micro_batches(), loader, strict=True):
            loss = mse_loss(model(inputs.to(accelerator.device)), targets.to(accelerator.device))
            accelerator.backward(loss * micro.weight)
            optimizer.step()
            optimizer.zero_grad()
            sampler.advance()
            step += 1
            ctx.step(step)
            stopping = step % 10 == 0 and ctx.should_stop()
            if stopping or step % 100 == 0:
                save(accelerator, checkpoints, step)
            if stopping:
                return
            if step == steps:
                break
        epoch += 1
    if accelerator.is_main_process:
        weight, bias = (parameter.item() for parameter in net.parameters())
        print(f"done after step {step}: learned y = {weight:.6f}x + {bias:.6f}", flush=True)
    accelerator.end_training()


def save(accelerator: Accelerator, folder: Path, step: int) -> None:
    """Save into a folder, which gets its name only once it is whole: a worker may be killed at any moment."""
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
