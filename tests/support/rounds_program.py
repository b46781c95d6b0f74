"""The training of `kept_training` as a script of rounds: each is begun in the process of the one before if it can be.

Arguments: the folder for its notes, the number of steps, and any number of ends as ROUND:RANK:STEP:POINT:HOW. STEP may
be `first`, for the first one that the worker does in the round. HOW is the name of a signal, `error` for an exception,
or `cut`: the worker makes the file NODE.cut and waits until somebody removes it, who has cut off its host by then. Each
process also notes its id in each round.
"""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import torch

import workerlib
from tests.support.kept_training import STEP_S, Training, TrainingRound

LOOK_S = 0.005
"""How often a worker looks whether it is cut off."""


class ScriptError(Exception):
    """An error of the script's own."""


@contextmanager
def in_disguise(number: int) -> Iterator[None]:
    """Raise what libraries may make of the error of a collective: another one of it, or a group with it."""
    try:
        yield
    except RuntimeError as error:
        if number == 1:
            raise ScriptError("the step has failed") from error
        raise ExceptionGroup("parts of the step have failed", [error]) from None


class Ends:
    """The ends of this worker in one step, which come when it is called with their points."""

    def __init__(self, ends: Sequence[str], ctx: workerlib.Context, step: int, cut: Path, *, first: bool) -> None:
        self._hows = {}
        self._cut = cut
        names = {str(step), "first"} if first else {str(step)}
        for end in ends:
            *who, of_step, point, how = end.split(":")
            if who == [str(ctx.round), str(ctx.rank)] and of_step in names:
                self._hows[point] = how

    def __call__(self, point: str) -> None:
        """End this process, stop it, or wait until it is cut off, if that is to happen here."""
        how = self._hows.get(point)
        if how == "error":
            raise ScriptError
        if how == "cut":
            self._cut.touch()
            while self._cut.exists():
                Event().wait(LOOK_S)
        elif how is not None:
            os.kill(os.getpid(), signal.Signals[how])


def processes_of(folder: Path) -> dict[int, dict[int, int]]:
    """Return the process ids that the workers noted, by rank and round."""
    found: dict[int, dict[int, int]] = {}
    for file in folder.glob("*.pids"):
        rounds = (line.split() for line in file.read_text().splitlines(keepends=True) if line.endswith("\n"))
        found[int(file.stem)] = {int(number): int(pid) for number, pid in rounds}
    return found


def main(place: str, last: str, *ends: str) -> None:
    """Train; the worker of a rank may be ended in a round, at a point of a step."""
    torch.set_num_threads(1)  # as in the training that it is compared with
    training = Training()
    folder = Path(place)

    @workerlib.elastic
    def train(ctx: workerlib.Context) -> None:
        this_round = TrainingRound(training, ctx, folder)
        with (folder / f"{ctx.rank}.pids").open("a") as pids:
            pids.write(f"{ctx.round} {os.getpid()}\n")
        cut = folder / f"{ctx.environment.node}.cut"
        first = this_round.done + 1
        for step in range(first, int(last)):
            with in_disguise(ctx.round):
                this_round.do(step, Ends(ends, ctx, step, cut, first=step == first))
            Event().wait(STEP_S)

    train()


if __name__ == "__main__":
    main(*sys.argv[1:])
