"""The training of `recovery_training` as a script of `workerlib.rounds`, whose workers outlive a round where they can.

python recovery_in_place.py MARKS FINISH

A worker that goes on in a process of the round before has begun, imported and connected in the same moment.
"""

import sys
from pathlib import Path
from threading import Event

from recovery_training import BEGUN, STEP_S, Marks


def main(marks: Path, finish: Path) -> None:
    """Train."""
    import torch  # noqa: PLC0415 - as in `recovery_training`
    import torch.distributed as dist  # noqa: PLC0415
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415

    import workerlib  # noqa: PLC0415

    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    pause, first = Event(), True
    for ctx in workerlib.rounds("gloo"):
        with ctx:
            own = Marks(marks)
            own.note("begun", BEGUN if first else None)
            own.note("imported")
            own.note("connected")
            first = False
            wrapped = DistributedDataParallel(model)
            step, done = ctx.keep(model=wrapped, optimizer=optimizer), torch.zeros(1)
            while not done:
                loss = wrapped(torch.randn(8, 16)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                done.fill_(finish.exists())
                dist.all_reduce(done)
                step += 1
                own.note("step", step=step)
                ctx.step(step)
                pause.wait(STEP_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
