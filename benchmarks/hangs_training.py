"""The training of the benchmark `hangs`: a tiny model on gloo of which one rank hangs in each round, in a drawn way.

python hangs_training.py SEED FOLDER KIND [KIND ...]

Rank and way follow from the number of the round, so the benchmark knows them as well. With the kind `none` nobody
hangs: the training has long phases without a step, as evaluations and checkpoints are.
"""

import itertools
import math
import mmap
import os
import random
import signal
import subprocess
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

WHOLE = 1 << 29
"""The bytes of a checkpoint that is written at once, and is on the disk when that is over."""


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


def _disk(folder: Path, seconds: float = math.inf) -> None:
    """Wait in the kernel as for a disk that does not answer: not to be interrupted, and with Python's lock held.

    A process that has begun another one waits like that until the other has its program. This one does not come to it:
    it opens a pipe that nobody writes to, or not before so many seconds.
    """
    pipe = folder / f"pipe-{os.getpid()}"
    os.mkfifo(pipe)
    answers = ("/bin/sh", "-c", 'sleep "$0"; : > "$1"', str(seconds), str(pipe))
    opener = subprocess.Popen(answers) if seconds < math.inf else None  # noqa: S603 - it is right above
    opening = (os.POSIX_SPAWN_OPEN, 0, str(pipe), os.O_RDONLY, 0)
    begun = os.posix_spawn("/bin/sh", ["sh"], os.environ, file_actions=[opening])
    if opener is not None:
        opener.wait()
        os.waitpid(begun, 0)
        pipe.unlink()


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


def _save(folder: Path, seconds: float) -> None:
    """Write a checkpoint in small pieces, and wait for the disk after each."""
    until = time.monotonic() + seconds
    with (folder / "checkpoint").open("wb") as file:
        while time.monotonic() < until:
            file.seek(0)
            file.write(os.urandom(PART))
            os.fsync(file.fileno())


def _write(folder: Path, seconds: float) -> None:
    """Write a checkpoint as a whole: a system call goes on until all of it is on the disk."""
    until = time.monotonic() + seconds
    file = os.open(folder / "whole", os.O_CREAT | os.O_WRONLY | os.O_DSYNC)
    with mmap.mmap(-1, WHOLE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as zeros:
        while time.monotonic() < until:
            os.pwrite(file, zeros, 0)
    os.close(file)


def _phases(context: Any, folder: Path) -> list[Callable[[float], object]]:
    """Return what trainings do between their steps, each for some seconds."""
    import torch  # noqa: PLC0415 - as late as in a script
    import torch.distributed as dist  # noqa: PLC0415

    def count(seconds: float) -> None:
        done, until = torch.zeros(1), time.monotonic() + seconds
        while done < dist.get_world_size():
            done.fill_(float(time.monotonic() > until))
            dist.all_reduce(done)

    def one(phase: Callable[[Path, float], object]) -> Callable[[float], object]:
        return lambda seconds: phase(folder, seconds) if context.rank == 0 else None

    def validate(seconds: float) -> None:
        with context.section("validation", limit=600):
            threading.Event().wait(seconds if context.rank == 0 else 0)

    return [_compute, one(lambda _, seconds: _compute(seconds)), count, one(_save), one(_write), one(_disk), validate]


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
