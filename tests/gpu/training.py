"""A training whose sums are exact in any order, so that any right run ends with the same bits; ranks may share a GPU.

It uses the GPU if torch sees one, else gloo. Arguments: the folder for notes, how it goes on (see `HOWS`), `--sharded`
for FSDP2, `--rounds N` for the rounds in which it trains without an end, and ends as ROUND:RANK:STEP:END (see `ENDS`).
With `--seed S` one rank, drawn anew for each of these rounds, is killed at a moment that is drawn too.

Each worker notes its process and the step and the state from which it goes on in each round, each step that it has
done, and its last state.
"""

import argparse
import os
import random
import signal
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from threading import Event, Timer

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import workerlib
from tests.support.kept_training import STEP_S, digest_of, note_begin, whole_tensors
from workerlib.keeping import intervals

HOWS = ("anew", "kept", "in-place")
"""A round begins from nothing, from kept state, or from kept state and in place."""

LAYERS, SIZE = 4, 65_536

UNIT = 6
"""All gradients are multiples of this, so that the average of two or three is exact, also if it is made by parts."""

LAST_STEPS = 8
"""The steps of the last round."""

DRAWN_S = 1.0
"""A rank that is drawn is killed within this time of a round's beginning."""

DRAWN_SHARDED_S = 6.0
"""The same where state is sharded: it is saved every 1.5 s at most."""

ON_ONE_GPU = {
    "NCCL_NET": "Socket",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_ALGO": "Ring",
    "NCCL_PROTO": "Simple",
    "NCCL_MAX_CTAS": "2",
    "NCCL_BUFFSIZE": "1048576",
    "NCCL_RAS_ENABLE": "0",
}
"""What lets several ranks of NCCL share a GPU, if each also says that it is on a host of its own (docs/gpus.md)."""


class Layer(nn.Module):
    """Weights whose gradient is the input."""

    def __init__(self) -> None:
        """Begin with zeros."""
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(SIZE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a number."""
        return (self.weight * x).sum()


class Model(nn.Module):
    """Layers beside each other."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, inputs: list[torch.Tensor]) -> torch.Tensor:
        """Return the sum of what the layers return."""
        return torch.stack([layer(x) for layer, x in zip(self.layers, inputs, strict=True)]).sum()


def inputs_of(step: int, rank: int, world_size: int, device: torch.device) -> Iterator[torch.Tensor]:
    """Yield the inputs of a rank in a step: each rank has others, and their average is that of any world size."""
    own = 2 * rank - (world_size - 1)
    for layer in range(LAYERS):
        yield UNIT * ((torch.arange(SIZE, device=device) * (layer + 1) + 7 * step) % 5 - 2 + own).float()


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer that only adds, with a state."""
    return torch.optim.SGD(model.parameters(), lr=1.0, momentum=1.0)


def do_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: Iterator[torch.Tensor],
    between: Callable[[], None] = lambda: None,
) -> None:
    """Train by one step; call `between` when the sums are made, or enqueued on a GPU, and the weights are old."""
    optimizer.zero_grad()
    model(list(inputs)).backward()
    between()
    optimizer.step()


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Return a digest of all weights, and of what the optimizer has; 0.0 is added as zeros have two signs."""
    return digest_of(*(tensor.detach().cpu() + 0.0 for tensor in whole_tensors(model, optimizer)))


def undisturbed(last: int) -> list[str]:
    """Return the digests before the first step and after each, up to a last one, of a run on the CPU of this process.

    The inputs are the gradients. A backward would make a context on each GPU, whose memory then counts as held.
    """
    cpu, model = torch.device("cpu"), Model()
    optimizer = make_optimizer(model)
    digests = [state_of(model, optimizer)]
    for step in range(last + 1):
        for layer, x in zip(model.layers, inputs_of(step, 0, 1, cpu), strict=True):
            layer.weight.grad = x
        optimizer.step()
        digests.append(state_of(model, optimizer))
    return digests


def be_in_a_kernel() -> None:
    """Let the GPU be busy for an hour or more."""
    torch.cuda._sleep(10**13)  # type: ignore[no-untyped-call]


def spin() -> None:
    """Compute in Python for ever."""
    while True:
        pass


def kill_node() -> None:
    """Kill the nodeclient, which ends this process too."""
    os.kill(os.getppid(), signal.SIGKILL)
    Event().wait()


ENDS: dict[str, Callable[[], object]] = {
    "killed": partial(os.kill, os.getpid(), signal.SIGKILL),
    "stopped": partial(os.kill, os.getpid(), signal.SIGSTOP),
    "node": kill_node,
    "loop": spin,
    "kernel": be_in_a_kernel,
    "skip": lambda: None,
}
"""What may happen between the sums of a step and the optimizer, by name. The others of `skip` come to a barrier."""


class Disturbances:
    """What happens to this worker in its round."""

    def __init__(self, given: argparse.Namespace, ctx: workerlib.Context) -> None:
        """Draw what is left to chance."""
        self._ends = {}
        for text in given.ends:
            number, rank, step, kind = text.split(":")
            if int(number) == ctx.round:
                self._ends[int(step)] = (int(rank) == ctx.rank, kind)
        chance = random.Random(f"{given.seed} {ctx.round}")  # noqa: S311 - repeatable on purpose
        is_drawn = chance.randrange(ctx.world_size) == ctx.rank
        if is_drawn and given.seed is not None and ctx.round < given.rounds:
            within_s = DRAWN_SHARDED_S if given.sharded else DRAWN_S
            killing = Timer(chance.random() * within_s, ENDS["killed"])
            killing.daemon = True
            killing.start()
        self._others = dist.new_group() if any(kind == "skip" for _, kind in self._ends.values()) else None
        if self._others is not None:  # NCCL connects in a group's first collective, which its recorder does not show
            dist.barrier(self._others)

    def __call__(self, step: int) -> None:
        """Let happen what is to happen between the sums of this step and the optimizer."""
        is_mine, kind = self._ends.get(step, (False, ""))
        if is_mine:
            ENDS[kind]()
        elif kind == "skip":
            dist.barrier(self._others)


def train(
    given: argparse.Namespace, model: nn.Module, optimizer: torch.optim.Optimizer, ctx: workerlib.Context
) -> None:
    """Train in one round."""
    torch.set_num_threads(1)
    device, folder = ctx.device, given.folder
    with (folder / f"{ctx.rank}.pids").open("a") as pids:
        pids.write(f"{ctx.round} {os.getpid()}\n")
    if given.sharded:
        from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - it takes a second

        intervals.SHARE_MAX = 1e6  # shards are saved as often as they can be
        model = Model().to(device)
        for module in (*model.layers, model):
            # NCCL's own average multiplies and adds without rounding in between: sums to zero come out as 6e-8.
            fully_shard(module).set_force_sum_reduction_for_comms(True)
        optimizer = make_optimizer(model)
    else:
        model = DistributedDataParallel(model)
    done = -1 if given.how == "anew" else ctx.keep(model=model, optimizer=optimizer)
    note_begin(folder, ctx, done, state_of(model, optimizer))
    disturbances = Disturbances(given, ctx)
    with (folder / f"{ctx.rank}.txt").open("a") as notes:
        for step in count(done + 1) if ctx.round < given.rounds else range(done + 1, done + 1 + LAST_STEPS):
            inputs = inputs_of(step, ctx.rank, ctx.world_size, device)
            do_step(model, optimizer, inputs, partial(disturbances, step))
            if device.type == "cuda":
                torch.cuda.synchronize()
            else:
                Event().wait(STEP_S)
            ctx.step(step)
            notes.write(f"{ctx.round} {ctx.rank} {step} -\n")
            notes.flush()
    with (folder / f"{ctx.rank}.ends").open("a") as ends:
        ends.write(f"{ctx.round} {ctx.rank} {step} {state_of(model, optimizer)}\n")


def main() -> None:
    """Train as the arguments say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("how", choices=HOWS)
    parser.add_argument("ends", nargs="*")
    parser.add_argument("--sharded", action="store_true")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed")
    given = parser.parse_intermixed_args()
    os.environ |= {"NCCL_HOSTID": str(os.getpid()), **ON_ONE_GPU, **os.environ}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Model().to(device)
    body = partial(train, given, model, make_optimizer(model))
    if given.how == "in-place":
        workerlib.elastic(body)()
    else:
        with workerlib.init() as ctx:
            body(ctx)


if __name__ == "__main__":
    main()
