"""Scripts of rounds that hold more than a model, or that do not leave a round when they are asked to.

Arguments: the kind of script, and the folder into which each process writes a line of JSON for each of its rounds. A
`plain` one has a model and nothing else, a `sharded` one a sharded model, a `living` one compiled code and a loader
that outlives rounds, and a `connected` one a thread and connections of its own. In the first round, a `deaf` one
catches whatever ends a step, a `native` one waits in C and keeps the lock of the interpreter, and an `aborting` one has
a group that takes for ever to be aborted.
"""

import ctypes
import json
import os
import socket
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from threading import Event, Thread
from typing import Any

import torch
from torch import nn
from torch._C._distributed_c10d import TCPStore
from torch.utils.data import DataLoader, Dataset

import workerlib
from tests.support.nccl_like import NCCL_LIKE, register

PAUSE_S = 0.02
"""The pause after each step: nothing is to be measured."""


class Numbers(Dataset[tuple[int, int]]):
    """So many samples, each with the process that made it."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[int, int]:
        """Return a sample and the id of this process, and say so."""
        sys.stdout.write(f"made {index}\n")
        sys.stdout.flush()
        return index, os.getpid()


def train_steps(
    ctx: workerlib.Context, model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path, **facts: Any
) -> None:
    """Train without an end, and note the round with its first step."""
    for step in count(1 + ctx.keep(model=model, optimizer=optimizer)):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        ctx.step(step)
        if facts:
            note(ctx, folder, step, **facts)
            facts = {}
        Event().wait(PAUSE_S)


def note(ctx: workerlib.Context, folder: Path, step: int, **facts: Any) -> None:
    """Note a round of this process."""
    noted = {"round": ctx.round, "pid": os.getpid(), "step": step, **facts}
    with (folder / f"{ctx.round}-{os.getpid()}.json").open("w") as file:
        json.dump(noted, file)


def train_sharded(folder: Path) -> None:
    """Train a model whose parameters are DTensors."""
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - it takes a second

    for ctx in workerlib.rounds("gloo"):
        with ctx:
            model: Any = fully_shard(nn.Linear(8, 8))
            train_steps(ctx, model, torch.optim.SGD(model.parameters(), lr=0.01), folder, world_size=ctx.world_size)


def train_living(folder: Path) -> None:
    """Train with code in which the number of workers is a constant, and a loader whose process lives on."""
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = iter(DataLoader(Numbers(), batch_size=4, num_workers=1))

    @torch.compile(backend="eager", fullgraph=True)
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * torch.distributed.get_world_size()

    @workerlib.elastic(backend="gloo")
    def train(ctx: workerlib.Context) -> None:
        samples, makers = next(batches)
        facts = {
            "world_size": ctx.world_size,
            "scaled": int(scaled(torch.ones(1))),
            "samples": samples.tolist(),
            "maker": int(makers[0]),
        }
        train_steps(ctx, nn.parallel.DistributedDataParallel(model), optimizer, folder, **facts)

    train()


def train_connected(folder: Path) -> None:
    """Train beside a thread that answers on a connection, and with a store of the script's own, which torch serves."""
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    answering = Thread(target=answer, args=[far], daemon=True)
    answering.start()
    store: TCPStore | None = None
    for ctx in workerlib.rounds("gloo"):
        with ctx:
            store = store or TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            near.sendall(b"?")
            facts = {"answer": near.recv(1).decode(), "rounds": store.add("rounds", 1), "thread": answering.ident}
            train_steps(ctx, nn.parallel.DistributedDataParallel(model), optimizer, folder, **facts)


def answer(connection: socket.socket) -> None:
    """Answer each byte, until the connection ends."""
    while connection.recv(1):
        connection.sendall(b"!")


def be_deaf() -> None:
    """Go on for ever, whatever happens."""
    while True:
        try:
            workerlib.step(0)
            Event().wait(PAUSE_S)
        except BaseException:  # noqa: BLE001, S110 - it is the mistake that is tried
            pass


def wait_in_c() -> None:
    """Wait for longer than any test in a call that lets no other thread run Python."""
    ctypes.PyDLL(None).sleep(100_000)


def train_plainly(folder: Path) -> None:
    """Train as a script of rounds is meant to."""
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for ctx in workerlib.rounds("gloo"):
        with ctx:
            train_steps(ctx, nn.parallel.DistributedDataParallel(model), optimizer, folder, trains=True)


def train_aborting(folder: Path) -> None:
    """Train with groups whose abort waits in C."""
    register(lambda: ctypes.CDLL(None).sleep(100_000))
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for ctx in workerlib.rounds(NCCL_LIKE):
        with ctx:
            train_steps(ctx, model, optimizer, folder, trains=True)


def train_badly(folder: Path, first_round: Callable[[], None]) -> None:
    """Train, but do something else in the middle of the first round."""
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for ctx in workerlib.rounds("gloo"):
        with ctx:
            if ctx.round == 1:
                ctx.keep(model=model, optimizer=optimizer)
                note(ctx, folder, 0)
                first_round()
            train_steps(ctx, nn.parallel.DistributedDataParallel(model), optimizer, folder, trains=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    kinds: dict[str, Callable[[Path], None]] = {
        "plain": train_plainly,
        "sharded": train_sharded,
        "living": train_living,
        "connected": train_connected,
        "deaf": lambda folder: train_badly(folder, be_deaf),
        "aborting": train_aborting,
        "native": lambda folder: train_badly(folder, wait_in_c),
    }
    kinds[sys.argv[1]](Path(sys.argv[2]))
