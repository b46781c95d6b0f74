"""The DDP training of `kept` as a script of `workerlib.rounds`, whose workers outlive a round where they can.

python kept_in_place.py MEGABYTES MARKS FINISH
"""

import sys
from pathlib import Path

import torch
from kept_training import network, train
from recovery_training import Marks
from torch.nn.parallel import DistributedDataParallel

import workerlib


def main(megabytes: int, marks: Path, finish: Path) -> None:
    """Train until the file of the end is there."""
    model = network(megabytes, sharded=False)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, 0.9)
    for ctx in workerlib.rounds():
        with ctx:
            replica = DistributedDataParallel(model)
            done = ctx.keep(model=replica, optimizer=optimizer)
            for step in train(replica, optimizer, done, Marks(marks), finish):
                ctx.step(step)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
