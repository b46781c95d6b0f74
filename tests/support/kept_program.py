"""The trainings of `kept_training` as a program.

Arguments: `ddp`, `fsdp`, `hsdp` (two replicas of all shards) or `dcp` (which calls `torch.distributed.checkpoint` by
itself), the folder for its notes, the number of steps, and any number of kills, either as ROUND:RANK:STEP:POINT, or as
ROUND:RANK:PLACE:LINES for `dying.die_within`. The place `big save` counts the lines of one save of the big state.
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch

from tests.support.dying import PLACES, die_within
from tests.support.kept_training import STEP_S, train_ddp, train_sharded
from workerlib.keeping.generations import GenerationWriter

NOBODY = (-1, -1, "")


def main(kind: str, folder: str, steps: str, *kills: str) -> None:
    """Train; the worker of a rank may be killed in a round, at a point of a step or at a line of ours."""
    torch.set_num_threads(1)  # as in the training that it is compared with
    kill = NOBODY
    for number, rank, where, at in (text.split(":") for text in kills):
        if (number, rank) == (os.environ["COORDINATORD_ROUND"], os.environ["RANK"]):
            if where == "big save":
                die_in_a_big_save(int(at))
            elif where in PLACES:
                die_within(where, int(at))
            else:
                kill = int(rank), int(where), at
    if kind == "ddp":
        train_ddp(Path(folder), int(steps), kill, STEP_S)
    elif kind == "dcp":
        from tests.support.kept_checkpoint import train_and_save  # noqa: PLC0415 - the others start earlier without

        train_and_save(Path(folder), int(steps), kill[:2])
    else:
        replicas = 2 if kind == "hsdp" else 1
        train_sharded(Path(folder), int(steps), kill[:2], replicas=replicas, step_s=STEP_S)


def die_in_a_big_save(lines: int) -> None:
    """Have this process die after so many lines of the first save of the big state, in whichever thread."""
    write = GenerationWriter.write

    def die(generations: GenerationWriter, *arguments: Any, **named: Any) -> int:
        die_within("save", lines)
        return write(generations, *arguments, **named)

    GenerationWriter.write = die  # type: ignore[method-assign, assignment]  # other lines of its module run at each step


if __name__ == "__main__":
    main(*sys.argv[1:])
