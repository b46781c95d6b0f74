"""The training of `kept_training` as a script of rounds: each is begun in the process of the one before if it can be.

Arguments: the folder for its notes, the number of steps, and any number of ends as ROUND:RANK:STEP:POINT:HOW. STEP may
be `first`, for the first one that the worker does in the round. HOW is the name of a signal, `error` for an exception,
or `cut`: the worker makes the file NODE.cut and waits until somebody removes it, who has cut off its host by then. Each
process also notes its id in each round.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any, Self

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

import workerlib
from tests.support.kept_training import (
    FEATURES,
    STEP_S,
    digest_of,
    digest_of_own,
    in_order,
    make_model,
    note_begin,
    without_end,
)

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

    def __init__(
        self,
        ends: Sequence[str],
        ctx: workerlib.Context,
        step: int,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        cut: Path,
        *,
        first: bool,
    ) -> None:
        self._hows = {}
        self._cut = cut
        names = {str(step), "first"} if first else {str(step)}
        for end in ends:
            *who, of_step, point, how = end.split(":")
            if who == [str(ctx.round), str(ctx.rank)] and of_step in names:
                self._hows[point] = how
        self._hooks = (
            optimizer.register_step_post_hook(lambda *_: self("optimizer")),
            next(iter(model.parameters())).register_hook(lambda _: self("backward")),  # type: ignore[no-untyped-call]
        )

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

    def __enter__(self) -> Self:
        """Begin the step."""
        return self

    def __exit__(self, *_: object) -> None:
        """Take the hooks off: the model lives on."""
        for hook in self._hooks:
            hook.remove()


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
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.7)
    data = torch.randn(10_000, FEATURES, generator=torch.Generator().manual_seed(1))
    counters: dict[str, Any] = {"chain": ""}
    folder = Path(place)

    @workerlib.elastic
    def train(ctx: workerlib.Context) -> None:
        random.seed(ctx.rank)
        np.random.seed(ctx.rank)  # noqa: NPY002 - as in `kept_training`
        wrapped = DistributedDataParallel(model)
        wrapped.register_comm_hook(None, lambda _, bucket: in_order(bucket))
        torch.manual_seed(ctx.rank)
        sampler = workerlib.ElasticDistributedSampler(range(10_000), batch_size=ctx.world_size * 8)
        kept = {"optimizer": optimizer, "scheduler": scheduler, "sampler": sampler, "counters": counters}
        done = ctx.keep(model=wrapped, **kept)
        batches = without_end(sampler)
        cut = folder / f"{ctx.environment.node}.cut"
        with (folder / f"{ctx.rank}.pids").open("a") as pids:
            pids.write(f"{ctx.round} {os.getpid()}\n")
        note_begin(folder, ctx, done, f"{counters['chain']}-{digest_of_own(wrapped)}")
        with (folder / f"{ctx.rank}.txt").open("a") as notes:
            for step in range(done + 1, int(last)):
                first = step == done + 1
                with in_disguise(ctx.round), Ends(ends, ctx, step, wrapped, optimizer, cut, first=first) as at:
                    at("before")
                    x = data[next(batches)]
                    x = x + random.random() + torch.from_numpy(np.random.randn(FEATURES)).float()  # noqa: S311, NPY002
                    loss = wrapped(x).square().mean()
                    at("forward")
                    optimizer.zero_grad()
                    loss.backward()
                    at("gradients")
                    optimizer.step()
                    at("scheduler")
                    scheduler.step()
                    sampler.advance()
                    alike = (dict(wrapped.named_parameters()), optimizer.state_dict()["state"], scheduler.state_dict())
                    counters["chain"] = digest_of(counters["chain"], *alike, sampler.state_dict())
                    own = digest_of_own(wrapped)
                    at("between")
                    ctx.step(step)
                    notes.write(f"{ctx.round} {ctx.rank} {step} {counters['chain']}-{own}\n")
                    notes.flush()
                    at("after")
                Event().wait(STEP_S)

    train()


if __name__ == "__main__":
    main(*sys.argv[1:])
