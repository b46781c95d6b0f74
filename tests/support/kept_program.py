"""The training of `kept_training` as a program.

Arguments: the folder for its notes, the number of steps, and any number of kills as ROUND:RANK:STEP:POINT.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from tests.support.kept_training import train_ddp


def main(folder: str, steps: str, *kills: str) -> None:
    """Train; the worker of a rank may be killed in a round, at a point of a step."""
    torch.set_num_threads(1)  # as in the training that it is compared with
    rounds = dict(kill.split(":", 1) for kill in kills)
    rank, step, point = rounds.get(os.environ["COORDINATORD_ROUND"], "-1:-1:").split(":")
    train_ddp(Path(folder), int(steps), (int(rank), int(step), point))


if __name__ == "__main__":
    main(*sys.argv[1:])
