"""A training whose every step depends on all that came before, to the last bit; workers of `keeping` run it.

There is dropout, batch norm, an optimizer with a state, a scheduler, a sampler, and random numbers of Python and numpy.
After each step a worker notes a digest of what is alike on all ranks and of the digest before, which is itself kept,
and a digest of its own buffers and random state. So a state that is mixed of two steps, or lacks anything, shows from
then on.
"""

import hashlib
import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import workerlib
from workerlib.keeping import intervals
from workerlib.keeping.pieces import is_sharded

FEATURES = 33

STEP_S = 0.04
"""The time that each step of a program takes longer, as if it computed: a training that goes on until something happens
would keep all cores busy that other programs need to make it happen."""

WARM = {
    "ddp": ("--preload", "torch,torch.distributed,numpy,workerlib.keeping.keeper"),
    "fsdp": ("--preload", "torch,torch.distributed.fsdp,numpy,workerlib.keeping.keeper"),
}
"""The flags with which each kind of training begins warm."""

POINTS = ("before", "forward", "backward", "gradients", "optimizer", "scheduler", "between", "after")
"""Where in a step a worker may be killed."""


def make_model() -> nn.Module:
    """Return a network with all that a step may depend on."""
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Linear(FEATURES, FEATURES), nn.BatchNorm1d(FEATURES), nn.Dropout(0.3), nn.ReLU(), nn.Linear(FEATURES, 5)
    )


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """Yield all tensors within dicts and lists, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for key in value:
            yield from tensors_of(value[key])
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_of(item)


def digest_of(*values: Any) -> str:
    """Return a digest of tensors, and of whatever else is shown by repr."""
    digest = hashlib.sha256()
    for value in values:
        found = list(tensors_of(value))
        for tensor in found:
            local = getattr(tensor, "_local_tensor", tensor).detach().resolve_conj().contiguous().reshape(-1)
            digest.update(bytes(local.view(torch.uint8).numpy()) if local.numel() else b"")
        if not found:
            digest.update(repr(value).encode())
    return digest.hexdigest()[:16]


def in_order(bucket: Any) -> Any:
    """Average gradients in the order of the ranks.

    A ring adds them up in an order that depends on their place in the bucket, and DDP lays its buckets out anew after
    the first step of each process: with more than two ranks the last bit of a sum would differ after a restart.
    """
    mine = bucket.buffer()
    gathered = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    work = dist.all_gather(gathered, mine, async_op=True)

    def average(future: Any) -> torch.Tensor:
        future.value()  # raises what the collective raised
        return torch.stack(gathered).sum(0) / len(gathered)

    return work.get_future().then(average)


def without_end(sampler: workerlib.ElasticDistributedSampler) -> Iterator[list[int]]:
    """Return the batches of one epoch after the other."""
    for epoch in count(sampler.epoch):
        sampler.set_epoch(epoch)
        yield from sampler


class Training:
    """A training as long as its process lives: what outlives a round in it, and the data."""

    def __init__(self) -> None:
        self.model = make_model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=3, gamma=0.7)
        self.data = torch.randn(10_000, FEATURES, generator=torch.Generator().manual_seed(1))
        self.counters: dict[str, Any] = {"chain": ""}
        self.batches = {"done": 0}
        """Counted where a script often does it: between `backward` and `optimizer.step`."""


class TrainingRound:
    """One round of a training under DDP."""

    def __init__(self, training: Training, ctx: workerlib.Context, folder: Path) -> None:
        """Take part, and note the state that the training goes on from."""
        random.seed(ctx.rank)
        np.random.seed(ctx.rank)  # noqa: NPY002 - the legacy random numbers are what many scripts use
        self._training, self._ctx, self._folder = training, ctx, folder
        self._model = DistributedDataParallel(training.model)
        self._model.register_comm_hook(None, lambda _, bucket: in_order(bucket))
        torch.manual_seed(ctx.rank)
        self._sampler = workerlib.ElasticDistributedSampler(range(10_000), batch_size=ctx.world_size * 8)
        kept = {"scheduler": training.scheduler, "sampler": self._sampler, "counters": training.counters}
        kept["batches"] = training.batches
        self.done = ctx.keep(model=self._model, optimizer=training.optimizer, **kept)
        """The last step of that state."""
        self._batches = without_end(self._sampler)
        note_begin(folder, ctx, self.done, f"{training.counters['chain']}-{digest_of_own(self._model)}")

    def do(self, step: int, at: Callable[[str], None]) -> None:
        """Do a step, call `at` with each of the `POINTS`, and append `round rank step digest` to a file."""
        training, ctx, optimizer = self._training, self._ctx, self._training.optimizer
        with self._within(at):
            at("before")
            x = training.data[next(self._batches)]
            x = x + random.random() + torch.from_numpy(np.random.randn(FEATURES)).float()  # noqa: S311, NPY002
            loss = self._model(x).square().mean()
            at("forward")
            optimizer.zero_grad()
            loss.backward()
            training.batches["done"] += 1
            at("gradients")
            optimizer.step()
            at("scheduler")
            training.scheduler.step()
            self._sampler.advance()
            parameters, moments = dict(self._model.named_parameters()), optimizer.state_dict()["state"]
            alike = (parameters, moments, training.scheduler.state_dict(), self._sampler.state_dict(), training.batches)
            training.counters["chain"] = digest_of(training.counters["chain"], *alike)
            digest = f"{training.counters['chain']}-{digest_of_own(self._model)}"
            at("between")
            ctx.step(step)
            note(self._folder, ctx, step, digest)
            at("after")

    @contextmanager
    def _within(self, at: Callable[[str], None]) -> Iterator[None]:
        """Call `at` also within calls of torch; the hooks for it come off after that, since the model lives on."""
        hooks = (
            self._training.optimizer.register_step_post_hook(lambda *_: at("optimizer")),
            next(iter(self._model.parameters())).register_hook(lambda _: at("backward")),  # type: ignore[no-untyped-call]
        )
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def train_ddp(folder: Path, steps: int, kill: tuple[int, int, str] = (-1, -1, ""), step_s: float = 0.0) -> None:
    """Train under DDP; the worker of a rank may be killed in a step, at one of the `POINTS`.

    After each step it waits for `step_s`.
    Each worker appends `round rank step digest` to a file of its own, and to another one the step that it goes on from.
    """
    with workerlib.init() as ctx:
        training = TrainingRound(Training(), ctx, folder)
        for step in range(training.done + 1, steps):
            training.do(step, partial(_kill_at, kill, ctx.rank, step))
            Event().wait(step_s)


def _kill_at(kill: tuple[int, int, str], rank: int, step: int, point: str) -> None:
    if kill == (rank, step, point):
        os.kill(os.getpid(), signal.SIGKILL)


def digest_of_own(model: nn.Module) -> str:
    """Return a digest of what each rank has of its own: buffers and random state."""
    numbers = (torch.get_rng_state(), repr(random.getstate()), repr(np.random.get_state()))  # noqa: NPY002
    return digest_of(dict(model.named_buffers()), *numbers)


def note(folder: Path, ctx: workerlib.Context, step: int, digest: str, suffix: str = "txt") -> None:
    """Append a step and the state after it to the file of a worker."""
    with (folder / f"{ctx.rank}.{suffix}").open("a") as notes:
        notes.write(f"{ctx.round} {ctx.rank} {step} {digest}\n")


def note_begin(folder: Path, ctx: workerlib.Context, done: int, digest: str) -> None:
    """Note from which step a worker goes on, and the state that it was brought to."""
    note(folder, ctx, done, digest, "begins")


def notes_of(folder: Path, suffix: str = "txt") -> dict[int, dict[int, list[tuple[int, str]]]]:
    """Return what the workers noted: by rank, by step, each round with its digest."""
    found: dict[int, dict[int, list[tuple[int, str]]]] = {}
    for path in folder.glob(f"*.{suffix}"):
        for line in path.read_text().splitlines():
            round_, rank, step, digest = line.split()
            found.setdefault(int(rank), {}).setdefault(int(step), []).append((int(round_), digest))
    return found


def two_layers() -> nn.Sequential:
    """Return a small network, the same on all ranks."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(FEATURES, FEATURES + 4), nn.Linear(FEATURES + 4, 5))


def shard(model: nn.Sequential, world_size: int, replicas: int = 1) -> None:
    """Shard a network by FSDP2. With several `replicas`, as many groups of ranks have all shards, which is HSDP."""
    # Workers under DDP start much earlier without these.
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415

    if replicas == 1:
        mesh = init_device_mesh("cpu", (world_size,))
    else:
        shape = (replicas, world_size // replicas)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "shards"))
    for part in (*model, model):
        fully_shard(part, mesh=mesh)


def train_sharded(
    folder: Path,
    steps: int,
    kill: tuple[int, int] = (-1, -1),
    *,
    sharded: bool = True,
    replicas: int = 1,
    disk: Path | None = None,
    step_s: float = 0.0,
) -> None:
    """Train under FSDP2, or under DDP the same model; the worker of a rank may be killed before a step.

    After each step it waits for `step_s`.
    Rank 0 appends `round 0 step digest` of the whole tensors, first of those that it began with. With `disk`, the step
    before a worker is killed is also saved there, and each rank appends how many of its tensors are the same in it.
    """
    intervals.SHARE_MAX = 1e6  # saves each step, however slow this machine is
    with workerlib.init() as ctx:
        model = two_layers()
        if sharded:
            shard(model, ctx.world_size, replicas)
        trained = model if sharded else DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        data = torch.randn(64, FEATURES, generator=torch.Generator().manual_seed(1))
        done = ctx.keep(model=trained, optimizer=optimizer)

        def state() -> str:
            return digest_of(*whole_tensors(model, optimizer))

        if done >= 0:
            note(folder, ctx, done, state())
        if disk is not None and (saved := disk / str(done)).exists():
            from tests.support.kept_disk import count_equal  # noqa: PLC0415 - few workers need it

            with (folder / f"{ctx.rank}.disk").open("a") as counts:
                counts.write("{} {}\n".format(*count_equal(saved, model, optimizer)))
        note_begin(folder, ctx, done, state())
        for step in range(done + 1, steps):
            if kill == (ctx.rank, step):
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            trained(data[step % 8 :: 8]).square().mean().backward()
            optimizer.step()
            ctx.step(step)
            note(folder, ctx, step, state())
            if disk is not None and step == kill[1] - 1:
                from tests.support.kept_disk import save_on_disk  # noqa: PLC0415 - as above

                save_on_disk(disk / str(step), model, optimizer)
            Event().wait(step_s)


def whole_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Yield all parameters and what the optimizer has of each, put together from all ranks."""
    for parameter in model.parameters():
        for tensor in (parameter, *optimizer.state[parameter].values()):
            yield tensor.full_tensor() if is_sharded(tensor) else tensor
