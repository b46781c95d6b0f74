"""A training as a script of `workerlib.rounds`, which notes what its process holds in each round.

python rounds_training.py FOLDER

Each process writes a line of JSON into FOLDER/PID.jsonl with the first step of each of its rounds.
"""

import gc
import json
import os
import sys
import time
from pathlib import Path
from threading import Event

PAUSE_S = 0.01
"""The pause after each step: the processors are for what is measured."""


def held() -> dict[str, int]:
    """Return what this process holds: memory of its own in KiB, threads, and open descriptors."""
    gc.collect()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "own_kib": int(status["RssAnon"].split()[0]),
        "threads": int(status["Threads"]),
        "descriptors": len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - it is the least that can be opened for this
    }


def main(folder: Path) -> None:
    """Train until the process is ended."""
    import torch  # noqa: PLC0415 - it is imported where it is preloaded
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415

    import workerlib  # noqa: PLC0415

    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    pause = Event()
    for ctx in workerlib.rounds("gloo"):
        with ctx, (folder / f"{os.getpid()}.jsonl").open("a") as notes:
            wrapped = DistributedDataParallel(model)
            step = first = ctx.keep(model=wrapped, optimizer=optimizer) + 1
            while True:
                optimizer.zero_grad()
                wrapped(torch.ones(8, 16)).sum().backward()
                optimizer.step()
                ctx.step(step)
                if step == first:
                    notes.write(f"{json.dumps({'round': ctx.round, 'at': time.monotonic(), **held()})}\n")
                    notes.flush()
                step += 1
                pause.wait(PAUSE_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
