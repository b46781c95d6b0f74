"""The training of the benchmark `hangs`: a tiny model on gloo of which one rank hangs in each round, in a drawn way.

python hangs_training.py SEED FOLDER KIND [KIND ...]

Rank and way follow from the number of the round, so the benchmark knows them as well. With the kind `none` nobody
hangs: the training has long phases without a step, as evaluations and checkpoints are.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEP_S = 0.02

STEPS_BEFORE = 40
"""The steps of a round before one of its workers hangs: some heartbeats have told of steps by then."""

PHASE_EVERY = 400
"""The steps between two phases without any."""

PHASES_S = (12.0, 18.0, 25.0, 14.0, 40.0)
"""How long such phases take, in turn: one that is longer than those before it is the hard one."""

PART = 1 << 20
"""The bytes that a checkpoint writes at once."""


def hang_of(seed: int, kinds: list[str], number: int, world_size: int) -> tuple[str, int]:
    """Return in which way which rank hangs in a round."""
    rank = random.Random(f"{seed} {number}").randrange(world_size)  # noqa: S311 - drawn alike by all
    return kinds[(number - 1) % len(kinds)], rank


def _lock(_: Path) -> None:
    held = threading.Lock()
    held.acquire()
    held.acquire()


def _loop(_: Path) -> None:
    while True:
        pass


def _loader(_: Path) -> None:
    from torch.utils.data import DataLoader, Dataset  # noqa: PLC0415 - as late as in a script

    class Stuck(Dataset[int]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, _: int) -> int:
            threading.Event().wait()
            return 0

    next(iter(DataLoader(Stuck(), num_workers=1)))


def _disk(folder: Path) -> None:
    """Wait in the kernel as for a disk that does not answer: not to be interrupted, and with Python's lock held.

    A process that has begun another one waits like that until the other has its program. This one never comes to it: it
    opens a pipe that nobody writes to.
    """
    pipe = folder / f"pipe-{os.getpid()}"
    os.mkfifo(pipe)
    opening = (os.POSIX_SPAWN_OPEN, 0, str(pipe), os.O_RDONLY, 0)
    os.posix_spawn(sys.executable, [sys.executable], os.environ, file_actions=[opening])


def _skipped(_: Path) -> None:
    import torch.distributed as dist  # noqa: PLC0415 - as late as in a script

    dist.barrier()


def _sizes(_: Path) -> None:
    import torch  # noqa: PLC0415 - as late as in a script
    import torch.distributed as dist  # noqa: PLC0415

    dist.all_gather([torch.zeros(4) for _ in range(dist.get_world_size())], torch.zeros(4))


HANGS: dict[str, Callable[[Path], object]] = {
    "stopped": lambda _: os.kill(os.getpid(), signal.SIGSTOP),
    "lock": _lock,
    "loop": _loop,
    "gil": lambda _: sum(itertools.repeat(0)),
    "loader": _loader,
    "skipped": _skipped,
    "sizes": _sizes,
    "disk": _disk,
}


def _compute(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(10_000))


def _phases(context: Any, folder: Path) -> list[Callable[[float], object]]:
    """Return what trainings do between their steps, each for some seconds."""
    import torch  # noqa: PLC0415 - as late as in a script
    import torch.distributed as dist  # noqa: PLC0415

    def count(seconds: float) -> None:
        done, until = torch.zeros(1), time.monotonic() + seconds
        while done < dist.get_world_size():
            done.fill_(float(time.monotonic() > until))
            dist.all_reduce(done)

    def save(seconds: float) -> None:
        if context.rank == 0:
            until = time.monotonic() + seconds
            with (folder / "checkpoint").open("wb") as file:
                while time.monotonic() < until:
                    file.seek(0)
                    file.write(os.urandom(PART))
                    os.fsync(file.fileno())

    def validate(seconds: float) -> None:
        with context.section("validation", limit=600):
            threading.Event().wait(seconds if context.rank == 0 else 0)

    return [
        _compute,
        lambda seconds: _compute(seconds if context.rank == 0 else 0),
        count,
        save,
        validate,
    ]


def main(seed: int, folder: Path, kinds: list[str]) -> None:
    """Train until somebody hangs, or for ever."""
    import torch  # noqa: PLC0415 - the forks of nodeclient have it already
    import torch.distributed as dist  # noqa: PLC0415

    import workerlib  # noqa: PLC0415

    torch.set_num_threads(1)
    gradient = torch.ones(8)
    with workerlib.init() as context:
        kind, culprit = hang_of(seed, kinds, context.round, context.world_size)
        phases = _phases(context, folder)
        for step in itertools.count():
            dist.all_reduce(gradient)
            context.step(step)
            threading.Event().wait(STEP_S)
            if step == STEPS_BEFORE and context.rank == culprit and kind in HANGS:
                HANGS[kind](folder)
            if kind == "none" and step % PHASE_EVERY == PHASE_EVERY - 1:
                number = step // PHASE_EVERY
                phases[number % len(phases)](PHASES_S[number % len(PHASES_S)])


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
