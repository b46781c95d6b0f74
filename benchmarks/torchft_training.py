"""The training of `rivals` under torchft: DDP over replica groups, whose state a replica that comes gets from another.

python torchft_training.py MEGABYTES FOLDER MARKS FINISH

Each replica group is one worker. The rank with the least number writes a checkpoint every 50 steps, for the case that
all of them end. A mark's round is the number of torchft's quorum.
"""

import sys
import time

BEGUN = time.monotonic()

import os  # noqa: E402 - as in `recovery_training`
from datetime import timedelta  # noqa: E402
from pathlib import Path  # noqa: E402
from threading import Event  # noqa: E402
from typing import Any  # noqa: E402

from recovery_training import STEP_S, Marks  # noqa: E402

WIDTH = 512
"""A layer of this width has a megabyte of parameters."""

SAVE_EVERY = 50
"""The steps between two checkpoints on a disk."""

COPIES = 2
"""SGD with momentum keeps a tensor for each parameter."""


def main(megabytes: int, folder: Path, marks: Path, finish: Path) -> None:
    """Train until the file of the end is there."""
    import torch  # noqa: PLC0415 - the time that it takes is part of what is to be known
    from torch import nn  # noqa: PLC0415
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo  # noqa: PLC0415

    imported_at = time.monotonic()
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(max(1, megabytes // COPIES))))
    inner = torch.optim.SGD(model.parameters(), 1e-3, 0.9)

    def state() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": inner.state_dict()}

    def load(found: dict[str, Any]) -> None:
        model.load_state_dict(found["model"])
        inner.load_state_dict(found["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=60)),
        load_state_dict=load,
        state_dict=state,
        min_replica_size=1,
        hostname="127.0.0.1",
        replica_id=os.environ["REPLICA_GROUP_ID"],
    )
    replicas, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, inner)
    if newest := max((int(path.stem) for path in folder.glob("*.checkpoint")), default=0):
        found = torch.load(folder / f"{newest}.checkpoint")
        load(found["state"])
        manager.load_state_dict(found["manager"])
    over, pause, place = torch.zeros(1), Event(), dict[str, str | int]()
    own = None
    while not over:
        began_at, before = time.monotonic(), manager.current_step()
        optimizer.zero_grad()
        replicas(torch.randn(4, WIDTH)).square().mean().backward()
        over.fill_(finish.exists())
        manager.allreduce(over).wait()
        optimizer.step()
        rank, step = manager.participating_rank(), manager.current_step()
        if rank is None or step == before:  # it has just got its state from another, or the step was given up
            continue
        known = place.get("round")
        quorum = manager._quorum_id  # noqa: SLF001 - nothing public has it
        here = {"rank": rank, "world_size": manager.num_participants(), "round": f"quorum {quorum}"}
        if own is None or here != place:
            own, place = Marks(marks, **here), here
        if place["round"] != known:
            own.note("begun", began_at if known else BEGUN)
            own.note("imported", began_at if known else imported_at)
            own.note("connected", began_at)
        own.note("step", step=step)
        if rank == 0 and step % SAVE_EVERY == 0:
            save(folder / f"{step}.checkpoint", {"state": state(), "manager": manager.state_dict()})
        pause.wait(STEP_S)


def save(path: Path, found: dict[str, Any]) -> None:
    """Write a checkpoint, whole or not at all."""
    import torch  # noqa: PLC0415 - as above

    torch.save(found, path.with_suffix(".part"))
    path.with_suffix(".part").rename(path)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]))
