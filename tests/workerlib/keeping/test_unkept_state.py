"""What training depends on and nobody keeps is said once: optimizers by their class, objects by their name."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.optim import SGD, Adam, Optimizer

from tests.support.kept_script import Objects, Script, Stateful, do_steps, network, train
from workerlib.contract.channel_messages import Unkept

pytestmark = pytest.mark.slow

WORDS = "the state of {}, an optimizer that changes kept parameters and was not given to ctx.keep"


class Sharp(Optimizer):
    """An optimizer around another one, with the parameter groups of that one, as minimisers of sharpness have it."""

    def __init__(self, inner: Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner
        self.param_groups = inner.param_groups

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # torch returns the loss
        """Let the inner one do it."""
        del closure
        self.inner.step()


class Prepared(Optimizer):
    """What a framework makes of an optimizer: another object with the same state."""

    def __init__(self, inner: Optimizer) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # torch returns the loss
        """Let the inner one do it."""
        del closure
        self.inner.step()


class Trainer:
    """An object of a script's own that has an optimizer, and its state in its own."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.step, self.zero_grad = optimizer.step, optimizer.zero_grad

    def state_dict(self) -> Objects:
        """Return that of the optimizer."""
        return {"optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: Objects) -> None:
        """Take it."""
        self.optimizer.load_state_dict(state["optimizer"])


def said(script: Script) -> list[str]:
    """Return what the worker has said of state that is not kept."""
    return [message.what for message in script.node.nodes[0].messages if isinstance(message, Unkept)]


def momentum(model: nn.Module) -> Optimizer:
    return SGD(model.parameters(), lr=0.1, momentum=0.9)


def plain(model: nn.Module) -> Optimizer:
    return SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("given", "unkept"),
    [
        (lambda model: {"optimizer": Sharp(momentum(model))}, ["SGD"]),
        (lambda model: {"optimizer": Sharp(plain(model))}, []),  # its state is in the groups, which both have
        (lambda model: {"optimizer": Prepared(momentum(model))}, []),
        (lambda model: {"optimizer": Prepared(plain(model))}, []),
        (lambda model: {"optimizer": Trainer(momentum(model))}, []),
    ],
)
def test_an_optimizer_within_another_one_is_kept_only_with_its_state(
    script: Script, given: Callable[[nn.Module], Objects], unkept: list[str]
) -> None:
    model = network()
    objects = {"model": model, **given(model)}
    with script.runs(objects) as (_, kept):
        do_steps(kept, model, objects["optimizer"])
        script.save(kept)
        assert said(script) == [WORDS.format(name) for name in unkept]


def test_optimizers_that_were_forgotten_are_said_once_for_each_class(script: Script) -> None:
    """One that changes nothing that is kept loses nothing that a restart brings back."""
    models = [network() for _ in range(3)]
    other = nn.Linear(4, 4)
    optimizers: list[Optimizer] = [plain(models[0]), momentum(models[1]), Adam(models[2].parameters())]
    stranger = torch.optim.RAdam(other.parameters())
    kinds = {f"model{number}": model for number, model in enumerate(models)}
    with script.runs({**kinds, "first": optimizers[0]}) as (_, kept):
        for step in range(3):
            for model, optimizer in zip(models, optimizers, strict=True):
                train(model, optimizer)
            train(other, stranger)
            kept.step(step)
        script.save(kept)
        assert said(script) == [WORDS.format("SGD"), WORDS.format("Adam")]


class Mean(nn.Module):
    """A metric, as torchmetrics has them: its sums are in no state dict by default."""

    total = torch.zeros(1)


def test_an_object_with_an_empty_state_dict_is_said(script: Script) -> None:
    """A gradient scaler that is not enabled has none to lose."""
    model = network()
    objects: Objects = {"model": model, "optimizer": plain(model), "scaler": torch.amp.GradScaler("cpu", enabled=False)}
    with script.runs({**objects, "mean": Mean(), "sums": Stateful({}), "counters": {}}) as (_, kept):
        do_steps(kept, model, objects["optimizer"])
        script.save(kept)
        assert [text.split(",")[0] for text in said(script)] == ["mean", "sums"]


def test_the_state_of_a_communication_hook_is_said(script: Script, group: None) -> None:
    """A hook without a state gets a process group, or nothing."""
    del group
    model = nn.parallel.DistributedDataParallel(network())
    optimizer = plain(model)
    state = PowerSGDState(None, start_powerSGD_iter=1_000)
    model.register_comm_hook(state, powerSGD_hook)
    other = nn.parallel.DistributedDataParallel(network())
    other.register_comm_hook(None, allreduce_hook)
    with script.runs({"model": model, "other": other, "optimizer": optimizer}) as (_, kept):
        do_steps(kept, model, optimizer)
        script.save(kept)
        assert said(script) == ["the PowerSGDState of a communication hook of model, which only its own rank has"]


@pytest.mark.parametrize("is_given", [True, False])
def test_parameters_that_only_a_given_optimizer_has_are_said(script: Script, *, is_given: bool) -> None:
    model = network()
    weights = {name: weight.detach().clone().requires_grad_() for name, weight in model.named_parameters()}
    optimizer = SGD(weights.values(), lr=0.1)
    objects: Objects = {"model": model, "optim": optimizer, **({"weights": weights} if is_given else {})}
    with script.runs(objects) as (_, kept):
        torch.func.functional_call(model, weights, torch.ones(2, 4)).sum().backward()
        optimizer.step()
        kept.step(0)
        script.save(kept)
        words = "parameters of optim that no object given to ctx.keep has: give it those too"
        assert said(script) == ([] if is_given else [words])


class App:
    """An object of a script's own that has a module, and its state in its own."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def state_dict(self) -> Objects:
        """Return that of the module, whose tensors are others than the parameters, in the same memory."""
        return {"model": self.module.state_dict()}

    def load_state_dict(self, state: Objects) -> None:
        """Take it."""
        self.module.load_state_dict(state["model"])


@pytest.mark.parametrize(
    ("make", "is_given", "unkept"), [(momentum, True, []), (momentum, False, ["SGD"]), (plain, False, [])]
)
def test_a_module_within_an_object_has_its_parameters_kept(
    script: Script, make: Callable[[nn.Module], Optimizer], *, is_given: bool, unkept: list[str]
) -> None:
    """Whether such an object has the options of plain SGD too cannot be seen, so nothing is said of it."""
    model = network()
    optimizer = make(model)
    with script.runs({"app": App(model), **({"optimizer": optimizer} if is_given else {})}) as (_, kept):
        do_steps(kept, model, optimizer)
        script.save(kept)
        assert said(script) == [WORDS.format(name) for name in unkept]
