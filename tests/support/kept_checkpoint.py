"""A script that calls `torch.distributed.checkpoint` by itself, with kept state in place of a disk."""

import logging
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path, PosixPath
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import workerlib
from tests.support.kept_training import digest_of, note, note_begin, whole_tensors
from tests.support.programs import wait_until
from workerlib.contract.env import KEEP


def checkpoint(folder: Path, steps: int) -> None:
    """Do so many steps, save the last, and write down a digest of the whole state before and after."""
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - torch 2.4 and 2.5 have it elsewhere

    with workerlib.init() as ctx:
        torch.manual_seed(ctx.round)
        model = nn.Linear(13, 7)
        fully_shard(model, mesh=init_device_mesh("cpu", (ctx.world_size,)))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        reader = workerlib.KeptReader()
        state: dict[str, Any] = {"model": model.state_dict(), "plain": torch.zeros(3), "note": {"round": 0, "why": ()}}
        if reader.step >= 0:
            load(state, storage_reader=reader)
            model.load_state_dict(state["model"])
        begun = f"{reader.step} {digest_of(*whole_tensors(model, optimizer))} {state['plain'].tolist()} {state['note']}"
        for _ in range(steps):
            model(torch.ones(2, 13)).sum().backward()
            optimizer.step()
        state = {
            "model": model.state_dict(),
            "plain": torch.full((3,), float(ctx.round)),
            "note": {"round": ctx.round, "why": (1, "x")},
        }
        step = reader.step + steps
        save(state, storage_writer=workerlib.KeptWriter(step))
        ended = f"{step} {digest_of(*whole_tensors(model, optimizer))} {state['plain'].tolist()} {state['note']}"
        (folder / f"{ctx.round}-{ctx.rank}").write_text(f"{begun}\n{ended}\n")


def train_and_save(folder: Path, steps: int, kill: tuple[int, int] = (-1, -1)) -> None:
    """Train under DDP with dropout, and save every four steps; the worker of a rank may be killed within a step.

    Each worker notes, as `kept_training` does, a digest of its state after each step, and of that which it begins with.
    """
    with workerlib.init() as ctx:
        torch.manual_seed(7)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(13, 17), nn.Dropout(0.3), nn.Linear(17, 5)))
        torch.manual_seed(ctx.rank)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        data = torch.randn(64, 13, generator=torch.Generator().manual_seed(1))

        def state() -> dict[str, Any]:
            weights, moments = get_state_dict(model, optimizer)
            return {"model": weights, "optimizer": moments, f"random.{ctx.rank}": torch.get_rng_state()}

        reader = workerlib.KeptReader()
        if reader.step >= 0:
            load(kept := state(), storage_reader=reader)
            moments = kept["optimizer"]
            set_state_dict(model, optimizer, model_state_dict=kept["model"], optim_state_dict=moments)
            torch.set_rng_state(kept[f"random.{ctx.rank}"])
        note_begin(folder, ctx, reader.step, digest_of(state()))
        for step in range(reader.step + 1, steps):
            optimizer.zero_grad()
            loss = model(data[(step + ctx.rank) % 8 :: 8]).square().mean()
            if ctx.round == 1 and kill == (ctx.rank, step):
                os.kill(os.getpid(), signal.SIGKILL)
            loss.backward()
            optimizer.step()
            if step % 4 == 3:
                save(state(), storage_writer=workerlib.KeptWriter(step))
            ctx.step(step)
            note(folder, ctx, step, digest_of(state()))


def own_values(folder: Path, *, plan_caching: bool) -> None:
    """Keep a value under a key of each rank's own, as torchtitan does with its loaders; write down the restored value.

    After the second of three saves there is one value more.
    """
    with workerlib.init() as ctx:
        reader = workerlib.KeptReader()
        own = f"loader.dp_rank_{ctx.rank}"
        state: dict[str, Any] = {"w": torch.zeros(4), own: {"at": 0}}
        if reader.step >= 0:
            state["late"] = 0
            load(state, storage_reader=reader)
        for step in range(reader.step + 1, reader.step + 4):
            state["w"] += 1
            state[own]["at"] += 10 + ctx.rank
            if step >= 2:
                state["late"] = step
            planner = DefaultSavePlanner(enable_plan_caching=plan_caching)
            save(state, storage_writer=workerlib.KeptWriter(step), planner=planner)
        (folder / f"{ctx.round}-{ctx.rank}").write_text(f"{state['w'][0]} {state[own]['at']} {state['late']}")


def without_memory(folder: Path, *, launched: bool) -> None:
    """Save where there is no memory for it, or no launcher that has any; write down what is logged."""
    logging.basicConfig(filename=folder / "log", level=logging.WARNING)
    if not launched:
        del os.environ[KEEP]
    with workerlib.init():
        for step in range(3):
            save({"w": torch.ones(4)}, storage_writer=workerlib.KeptWriter(step))
    (folder / "done").touch()


def save_five(folder: Path, steps: Sequence[int]) -> None:
    """Save five steps; wait after the third one until some are protected."""
    with workerlib.init():
        for step in steps:
            if step == steps[3]:
                wait_until("protection", (folder / "protected").exists)
            save({"w": torch.ones(4)}, storage_writer=workerlib.KeptWriter(step))


def save_before_planned_end(folder: Path) -> None:
    """Save each step until a checkpoint is asked for, and end with that; wait after the third one."""
    with workerlib.init() as ctx:
        step = -1
        while step < 0 or not ctx.should_checkpoint():
            step += 1
            if step == 3:
                wait_until("protection", (folder / "protected").exists)
            else:
                save({"w": torch.ones(4)}, storage_writer=workerlib.KeptWriter(step))
            ctx.step(step)
        save({"w": torch.ones(4)}, storage_writer=workerlib.KeptWriter(step))


class Stranger:
    """A value of a class of the script's own: who unpickles it runs code that the bytes choose."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __setstate__(self, state: dict[str, Path]) -> None:
        self.mark = state["mark"]
        self.mark.touch()


def strange_values(folder: Path) -> None:
    """Keep a value of a class that torch was told to trust in the first round only."""
    with workerlib.init() as ctx:
        reader = workerlib.KeptReader()
        state: dict[str, Any] = {"note": None}
        if ctx.round == 1:
            torch.serialization.add_safe_globals([Stranger, getattr, PosixPath, Path])
            save({"note": Stranger(folder / "mark")}, storage_writer=workerlib.KeptWriter(4))
            (folder / "mark").unlink()
            return
        errors = []
        works: list[Callable[[], object]] = [
            lambda: load(state, storage_reader=reader),
            lambda: save({"note": Stranger(folder / "mark")}, storage_writer=workerlib.KeptWriter(8)),
        ]
        for work in works:
            try:
                work()
            except CheckpointException as error:
                errors.append(str(error))
        (folder / "errors").write_text("\n".join(errors))
