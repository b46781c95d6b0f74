"""The training of the benchmark `laggards`: DDP on gloo, of which one rank takes longer in each backward pass.

python laggards_training.py SLOWED PART

The rank SLOWED takes longer by PART of the pass. Most of the pass is waited for, as a CPU waits for its GPU: so what is
measured is the slowness and not how many ranks share a CPU.
"""

import itertools
import sys
import threading
from typing import Any

BACKWARD_S = 0.1
"""How long a backward pass takes, beside what it computes."""

FORWARD_S = 0.04


def main(slowed: int, part: float) -> None:
    """Train until somebody ends it."""
    import torch  # noqa: PLC0415 - the forks of nodeclient have it already
    from torch import Tensor, nn  # noqa: PLC0415
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415

    import workerlib  # noqa: PLC0415

    pause = threading.Event()

    class Passes(torch.autograd.Function):
        """Passes tensors on, both ways, and takes its time."""

        @staticmethod
        def forward(context: Any, batch: Tensor, backward_s: float) -> Tensor:
            context.backward_s = backward_s
            pause.wait(FORWARD_S)
            return batch.view_as(batch)

        @staticmethod
        def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
            pause.wait(context.backward_s)
            return gradient, None

    class Model(nn.Module):
        """Two layers, between which a backward pass takes its time: after the last one's gradients, before others."""

        def __init__(self, backward_s: float) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 1)
            self.backward_s = backward_s

        def forward(self, batch: Tensor) -> Tensor:
            found: Tensor = self.last(Passes.apply(self.first(batch), self.backward_s))  # type: ignore[no-untyped-call]
            return found

    torch.set_num_threads(1)
    with workerlib.init() as context:
        model = DistributedDataParallel(Model(BACKWARD_S * (1.0 + part * (context.rank == slowed))))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in itertools.count():
            optimizer.zero_grad()
            model(torch.randn(8, 64)).square().mean().backward()
            optimizer.step()
            context.step(step)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
