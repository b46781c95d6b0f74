"""A training script in this process that keeps its state."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_pre_hooks as optimizer_hooks

from tests.support.environments import environment
from tests.support.keeping import Gone, Keep
from tests.support.kept_training import digest_of
from tests.support.programs import TIMEOUT_S, wait_until
from workerlib.contract.channel_messages import NotSaved, Saved
from workerlib.contract.env import KEEP
from workerlib.keeping import arena_request, keeper
from workerlib.keeping.keeper import StepKeeper

Objects = dict[str, Any]

MakeOptimizer = Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]

PLAIN: MakeOptimizer = partial(torch.optim.SGD, lr=0.1)


class Stateful:
    """An object of the script's own."""

    def __init__(self, state: Objects) -> None:
        self.state = state

    def state_dict(self) -> Objects:
        """Return the state as it is."""
        return self.state

    def load_state_dict(self, state: Objects) -> None:
        """Take another one."""
        self.state = state


class Script:
    """A script in this process, as the first of two ranks under DDP, and its node."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Start its node."""
        self.node = Keep(folder, 1)
        self.round = 0
        monkeypatch.setenv(KEEP, str(self.node.nodes[0].path))
        # A step that is done before the first memory is there asks for no more, and is not saved.
        monkeypatch.setattr(arena_request, "WITHIN_S", TIMEOUT_S)

    @contextmanager
    def runs(self, objects: Objects, world_size: int = 2) -> Iterator[tuple[int, keeper.StepKeeper]]:
        """Keep objects in the next round, until the worker ends."""
        self.round += 1
        done, kept = keeper.keep(environment(0, world_size, self.round, 1), objects)
        assert kept is not None
        try:
            yield done, kept
        finally:
            kept.close(failed=False)
            kept.planned_end.close()
            optimizer_hooks.clear()

    @contextmanager
    def trains(self, **others: Any) -> Iterator[tuple[nn.Module, torch.optim.SGD, StepKeeper]]:
        """Keep a network, its optimizer and other objects in the next round, until the worker ends."""
        objects = network_and_optimizer(**others)
        with self.runs(objects) as (_, kept):
            yield objects["model"], objects["optimizer"], kept

    def check_resumed(self, fresh: Objects, step: int, state: str, world_size: int = 2) -> None:
        """Check that the next round begins after a step, and brings fresh objects to its state."""
        with self.runs(fresh, world_size) as (done, _):
            assert (done, state_of(fresh)) == (step, state)

    @staticmethod
    def await_memory(kept: keeper.StepKeeper) -> None:
        """Wait until the worker has memory, or is refused any."""
        wait_until("memory", lambda: not kept._saver.memory.obstacle() or kept._saver.memory.refused)

    def begin_save(self, kept: keeper.StepKeeper) -> Future[list[Saved | NotSaved | Gone]]:
        """Ask a worker to save that is not between two steps; return what will have its answer."""
        pool = ThreadPoolExecutor(1)
        answers = pool.submit(self.node.save, 0)
        pool.shutdown(wait=False)
        wait_until("the request", lambda: kept._lock._request is not None)
        return answers

    def save(self, kept: keeper.StepKeeper) -> Saved | NotSaved:
        """Have the worker save at the end of its round, once it has memory."""
        self.await_memory(kept)
        before = len(self.node.nodes[0].messages)
        self.node.save(0)
        messages = self.node.nodes[0].messages[before:]  # maybe with that of a save at an interval before
        answer = next(message for message in messages if isinstance(message, (Saved, NotSaved)) and message.asked)
        self.node.choose()
        return answer

    def saved(self, kept: keeper.StepKeeper) -> int:
        """Have the worker save, which it does; return the step."""
        answer = self.save(kept)
        assert isinstance(answer, Saved), answer
        return answer.step

    def not_saved(self, kept: keeper.StepKeeper) -> str:
        """Have the worker save, which it does not; return why."""
        answer = self.save(kept)
        assert isinstance(answer, NotSaved), answer
        return answer.why


def network() -> nn.Module:
    """Return a network with buffers."""
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))


def network_and_optimizer(make: MakeOptimizer = PLAIN, **others: Any) -> Objects:
    """Return a network, an optimizer of its parameters, and other objects."""
    model = network()
    return {"model": model, "optimizer": make(model.parameters()), **others}


def train(model: nn.Module, *optimizers: torch.optim.Optimizer) -> None:
    """Do one step."""
    for optimizer in optimizers:
        optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()


def state_of(objects: Objects) -> str:
    """Return a digest of all that objects hold, and of the next random number."""
    values = [state.state_dict() if hasattr(state, "state_dict") else state for state in objects.values()]
    return digest_of(*values, torch.get_rng_state(), *(repr(state.get("_last_lr")) for state in values))


def do_steps(kept: StepKeeper, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Do the steps 0 to 2."""
    for step in range(3):
        train(model, optimizer)
        kept.step(step)
