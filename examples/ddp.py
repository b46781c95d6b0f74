"""The smallest script for distributed data parallel training, as it is written for torchrun.

    torchrun --standalone --nproc-per-node 2 examples/ddp.py
    nodeclient join --standalone --nproc-per-node 2 -- python examples/ddp.py

The script does not depend on which of them has started it. The launcher starts it once for each worker, and sets
variables such as RANK, WORLD_SIZE and MASTER_ADDR, which `init_process_group` reads. LOCAL_RANK is the number of the
worker on its host, and so the number of its GPU. torch.distributed.launch gives it as an argument as well.

The network learns y = 3x + 2 from points, of which each worker has different ones. The gradients are averaged over all
workers in each step, so all of them always have the same weights.
"""

from __future__ import annotations

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Run as one of the workers."""
    parser = argparse.ArgumentParser(description="Train one neuron on all workers.")
    parser.add_argument("--local_rank", "--local-rank", type=int, default=int(os.environ.get("LOCAL_RANK", "0")))
    parser.add_argument("--steps", type=int, default=50)
    arguments = parser.parse_args()

    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", arguments.local_rank)
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if device.type == "cpu" else "nccl")
    train(device, arguments.steps)
    # The model has to be freed first: with gloo, a process that frees it while Python ends is sometimes aborted.
    gc.collect()
    dist.destroy_process_group()


def train(device: torch.device, steps: int) -> None:
    """Train, while rank 0 prints the progress."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {world_size} on {device}", flush=True)
    torch.manual_seed(rank)  # each worker has points of its own
    model = DistributedDataParallel(nn.Linear(1, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, steps + 1):
        x = torch.randn(32, 1, device=device)
        loss = nn.functional.mse_loss(model(x), 3 * x + 2)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.6f}", flush=True)
    if rank == 0:
        weight, bias = (parameter.item() for parameter in model.parameters())
        print(f"learned y = {weight:.2f}x + {bias:.2f}", flush=True)


if __name__ == "__main__":
    main()
