"""A small real training loop for tests: gloo all-reduces on the CPU, until it is made to succeed.

Every rank adds up what all ranks contribute, and prints the sum at each tenth step. SIGUSR1 on rank 0 ends the job
well: the other ranks learn of it with the next sum.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import threading
from datetime import timedelta

gc.disable()  # a fifth of the time of an import of torch goes into the search for garbage, of which there is none

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

gc.enable()

STEP_S = 0.03
"""The time that rank 0 spends on each step before it adds up, as if it computed: the others wait for it within the
collective. Otherwise the jobs of a few tests would keep all cores busy that other tests need."""

STEPS_PER_LINE = 10

finish = torch.zeros(1)


def main() -> None:
    """Train."""
    signal.signal(signal.SIGUSR1, lambda *_: finish.fill_(1))
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    done, step, idle = False, 0, threading.Event()
    while not done:
        if dist.get_rank() == 0:
            idle.wait(STEP_S)
        total = torch.stack([torch.ones(1), finish])
        dist.all_reduce(total)
        done, step = bool(total[1] > 0), step + 1
        if step % STEPS_PER_LINE == 1 or done:
            emit("sum", step=step, sum=int(total[0].item()))
    dist.destroy_process_group()
    emit("done")


def emit(event: str, **facts: object) -> None:
    """Print one event in one write."""
    printed: dict[str, object] = {
        "rank": int(os.environ["RANK"]),
        "pid": os.getpid(),
        "round": int(os.environ["COORDINATORD_ROUND"]),
    }
    printed |= {"address": os.environ["MASTER_ADDR"]}
    os.write(1, f"{json.dumps({'event': event, **printed, **facts})}\n".encode())


if __name__ == "__main__":
    main()
