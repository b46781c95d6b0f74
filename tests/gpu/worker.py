"""A worker that uses its GPU and prints what it sees: one JSON object a line.

It all-reduces a few times, by nccl where there are several workers.
"""

from __future__ import annotations

import json
import os
import sys
import time

BEGAN = time.monotonic()
"""When this program began: a warm worker has imported torch before."""

import torch  # noqa: E402 - part of what a cold worker's first step takes
import torch.distributed as dist  # noqa: E402

import workerlib  # noqa: E402


def emit(**facts: object) -> None:
    """Write a line whole, whatever the other workers write."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


initialized = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
with workerlib.init() as ctx:
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    tensor = torch.ones(1, device="cuda")
    for step in range(3):
        tensor.fill_(1.0)
        dist.all_reduce(tensor)
        torch.cuda.synchronize()
        if step == 0:
            first_step_s = time.monotonic() - BEGAN
        ctx.step(step)
    properties = torch.cuda.get_device_properties(local)
    emit(
        rank=ctx.rank,
        local_rank=local,
        world=ctx.world_size,
        sum=tensor.item(),
        backend=dist.get_backend(),
        devices=torch.cuda.device_count(),
        uuid=str(getattr(properties, "uuid", "")),
        cuda_before_init=initialized,
        first_step_s=first_step_s,
    )
