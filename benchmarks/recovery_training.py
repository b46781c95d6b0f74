"""The training of the benchmark `recovery`: a small model on gloo, which notes when each thing has happened.

python recovery_training.py [in-place] MARKS FINISH

Each mark is one line of JSON at the end of the file MARKS, with the time of the monotonic clock, which all processes of
a machine share. When there is a file FINISH, all ranks end well after the same step. It is written as one would write
it for torchrun, so what torch imports late is not imported early here. `recovery_parts` makes figures of marks.

With `in-place` it is a script of `workerlib.rounds`, whose workers outlive a round where they can. A worker that goes
on in a process of the round before has begun, imported and connected in the same moment.
"""

import time

BEGUN = time.monotonic()

import json  # noqa: E402 - the first thing is to look at the clock
import os  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402
from threading import Event  # noqa: E402
from typing import Any  # noqa: E402

STEP_S = 0.05
"""The length of a step, hardly any of which is work: on few cores the workers must not starve what is measured."""


class Marks:
    """The file in which this worker notes what has happened."""

    def __init__(self, path: Path, **who: str | int) -> None:
        """Open it; `who` are the rank, the world size and the round, where the environment does not say them."""
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        environ = os.environ
        self._who = {
            "pid": os.getpid(),
            "rank": int(environ["RANK"]),
            "world_size": int(environ["WORLD_SIZE"]),
            # No two rounds have the same, whichever launcher starts the workers.
            "round": f"{environ['MASTER_ADDR']}:{environ['MASTER_PORT']}",
            **who,
        }

    def note(self, mark: str, at: float | None = None, step: int = 0) -> None:
        """Add a mark, in one write."""
        line = {"mark": mark, "at": time.monotonic() if at is None else at, "step": step, **self._who}
        os.write(self._file, f"{json.dumps(line)}\n".encode())


def main(marks: Marks, finish: Path) -> None:
    """Train as a script for torchrun does."""
    import torch.distributed as dist  # noqa: PLC0415 - the time that it takes is what is to be known
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415

    marks.note("imported")
    dist.init_process_group("gloo")
    marks.note("connected")
    model, optimizer = make()
    train(DistributedDataParallel(model), optimizer, 0, marks, finish, lambda _: None)
    dist.destroy_process_group()


def main_in_place(marks: Path, finish: Path) -> None:
    """Train as a script of `workerlib.rounds` does."""
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415 - as above

    import workerlib  # noqa: PLC0415

    model, optimizer = make()
    begun: float | None = BEGUN
    for ctx in workerlib.rounds("gloo"):
        with ctx:
            own = Marks(marks)
            own.note("begun", begun)
            own.note("imported")
            own.note("connected")
            begun = None
            wrapped = DistributedDataParallel(model)
            done = ctx.keep(model=wrapped, optimizer=optimizer)
            train(wrapped, optimizer, done, own, finish, ctx.step)


def make() -> tuple[Any, Any]:
    """Return a model and its optimizer."""
    import torch  # noqa: PLC0415 - as above

    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def train(model: Any, optimizer: Any, done: int, marks: Marks, finish: Path, report: Callable[[int], None]) -> None:
    """Train, from the step after `done` on, until the file of the end is there."""
    import torch  # noqa: PLC0415 - as above

    over, step, pause = torch.zeros(1), done, Event()
    while not over:
        loss = model(torch.randn(8, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        over.fill_(finish.exists())
        torch.distributed.all_reduce(over)
        step += 1
        marks.note("step", step=step)
        report(step)
        pause.wait(STEP_S)


if __name__ == "__main__":
    *mode, marks_path, finish_path = sys.argv[1:]
    if mode:
        main_in_place(Path(marks_path), Path(finish_path))
    else:
        own_marks = Marks(Path(marks_path))
        own_marks.note("begun", BEGUN)
        main(own_marks, Path(finish_path))
