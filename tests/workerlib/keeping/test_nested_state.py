"""Tensors within the lists and dicts of an object's state come back as they were, and what cannot is refused."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from tests.support.kept_script import Objects, Script, Stateful, network
from tests.support.programs import wait_until
from workerlib.keeping.kept_errors import KeptStateError
from workerlib.keeping.plain_values import BYTES_MAX, NestedTensors, from_plain, to_plain

pytestmark = pytest.mark.slow

WIDE = BYTES_MAX // 4 + 1
"""The elements of a tensor that is too large to be written at each step."""

State = dict[str, Any]

Make = Callable[[torch.Tensor, State], None]


def preconditioners(parameter: torch.Tensor, state: State) -> None:
    """Keep a matrix of each dimension, as Shampoo does, and their eigenvectors, which lie by columns."""
    grad = parameter.grad
    assert grad is not None
    factors: list[torch.Tensor] = state.setdefault("factors", [torch.zeros(size, size) for size in parameter.shape])
    for at, factor in enumerate(factors):
        flat = grad.movedim(at, 0).flatten(1) if grad.dim() > 1 else grad[:, None]
        factor.add_(flat @ flat.T)
    state["roots"] = tuple({"values": found[0], "vectors": found[1]} for found in map(torch.linalg.eigh, factors))


def history(parameter: torch.Tensor, state: State) -> None:
    """Have more of the past with each step, some of it no more than so long, and numbers beside it."""
    state.setdefault("past", []).append(parameter.detach().clone())
    state.setdefault("last", deque(maxlen=2)).append(parameter.detach().mean())
    state.setdefault("by_step", {})[len(state["past"])] = (parameter.detach().sum(), "step", None)
    state["ordered"] = OrderedDict(b=torch.ones(2), a=parameter.shape)


def the_same_twice(parameter: torch.Tensor, state: State) -> None:
    """Have one tensor in several places, and change it in one of them."""
    mean: torch.Tensor = state.setdefault("mean", parameter.detach().clone())
    state.setdefault("means", [mean, mean.new_zeros(3)])[0].mul_(0.9)
    state.setdefault("again", mean).add_(0.1)
    state.setdefault("own", {"parameter": parameter.detach()})["parameter"].mul_(0.99)


def turned(parameter: torch.Tensor, state: State) -> None:
    """Have tensors that do not lie by rows."""
    state["clone"] = parameter.detach().clone()
    state["turned"] = torch.randn(4, 3).t()
    state["images"] = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    state["every_second"] = torch.randn(6, 4)[::2]
    state["column"] = torch.randn(9, 8)[:, 3]
    state["number"] = torch.tensor(2.5, dtype=torch.float64)
    state["within"] = [torch.randn(4, 3).t(), torch.tensor(3), torch.empty(0, 2)]


class Made(Optimizer):
    """An optimizer with a state of whatever kind."""

    def __init__(self, parameters: Iterator[nn.Parameter], make: Make) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.make = make

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # torch returns the loss
        """Make the state of each parameter, and add a part of its gradient."""
        del closure
        self.state.setdefault("steps", [0])[0] += 1  # type: ignore[call-overload]  # it is no parameter's
        for group in self.param_groups:
            for parameter in group["params"]:
                self.make(parameter, self.state[parameter])
                parameter.sub_(parameter.grad, alpha=group["lr"] / self.state["steps"][0])  # type: ignore[index]


def images() -> nn.Module:
    """Return a network whose weights lie by channels, and have another type than the state."""
    torch.manual_seed(5)
    model: Any = nn.Sequential(nn.Conv2d(3, 4, 2), nn.Flatten(), nn.Linear(36, 4))
    by_channels: nn.Module = model.to(memory_format=torch.channels_last)  # the types of torch do not have it
    return by_channels


def train(objects: Objects) -> None:
    objects["optimizer"].zero_grad()
    model = objects["model"]
    shape = (2, 3, 4, 4) if isinstance(model[0], nn.Conv2d) else (8, 4)
    model(torch.randn(shape).to(next(model.parameters()).dtype)).square().mean().backward()
    objects["optimizer"].step()


def shown(value: Any) -> Any:
    """Return a state with all that can be seen of its tensors."""
    match value:
        case torch.Tensor():
            return value.dtype, value.shape, value.stride(), value.tolist()
        case dict():
            return type(value), [(key, shown(item)) for key, item in value.items()]
        case list() | tuple() | deque():
            return type(value), getattr(value, "maxlen", None), [shown(item) for item in value]
    return value


def states(objects: Objects) -> Any:
    state = objects["optimizer"].state
    order = [*objects["model"].parameters(), *(key for key in state if isinstance(key, str))]
    return [sorted((key, shown(value)) for key, value in state[key].items()) for key in order if key != "steps"]


@pytest.mark.parametrize("make", [preconditioners, history, the_same_twice, turned])
@pytest.mark.parametrize("network_of", [network, images, lambda: images().bfloat16()])
def test_an_optimizer_goes_on_with_its_state(script: Script, make: Make, network_of: Callable[[], nn.Module]) -> None:
    if make is preconditioners and next(network_of().parameters()).dtype is torch.bfloat16:
        pytest.skip("torch has no eigenvectors of this type")

    def fresh() -> Objects:
        model = network_of()
        return {"model": model, "optimizer": Made(model.parameters(), make)}

    objects = fresh()
    with script.runs(objects) as (_, kept):
        for step in range(4):
            train(objects)
            kept.step(step)
            wait_until("memory for what has grown", lambda: not kept._saver.memory.awaited)
        script.saved(kept)
        before = states(objects)
    train(objects)
    after = states(objects), shown(objects["model"].state_dict())
    back = fresh()
    with script.runs(back) as (done, _):
        assert done == 3
        assert states(back) == before
    train(back)
    assert (states(back), shown(back["model"].state_dict())) == after


@pytest.mark.parametrize("make", [lambda: torch.randn(6).unfold(0, 3, 1), lambda: torch.randn(100, 100)[:, 3]])
def test_elements_that_lie_far_apart_or_share_memory_come_back_without_that(
    script: Script, make: Callable[[], torch.Tensor]
) -> None:
    def fresh() -> Objects:
        model = network()
        return {"model": model, "optimizer": Made(model.parameters(), lambda _, state: state.setdefault("odd", make()))}

    objects = fresh()
    with script.runs(objects) as (_, kept):
        train(objects)
        kept.step(0)
        script.saved(kept)
    back = fresh()
    with script.runs(back):
        for parameter, former in zip(back["model"].parameters(), objects["model"].parameters(), strict=True):
            found, odd = (each["optimizer"].state[of]["odd"] for each, of in ((back, parameter), (objects, former)))
            assert found.is_contiguous()
            assert found.equal(odd)


def holder(*tensors: torch.Tensor) -> Stateful:
    return Stateful({"tensors": [*tensors], "same": tensors[0], "number": 1})


def test_large_tensors_of_an_object_are_big_state(script: Script) -> None:
    """There may be none before the middle of a training, so they must not be refused then."""
    held = holder(torch.randn(3, WIDE).t(), torch.randn(2))
    with script.runs({"held": held}) as (_, kept):
        for step in range(3):
            held.state["tensors"][0].add_(1)
            held.state["number"] = step
            kept.step(step)
        script.saved(kept)
        before = [each.clone() for each in held.state["tensors"]]
    back = holder(torch.zeros(1))
    with script.runs({"held": back}) as (done, _):
        assert done == 2
        tensors = back.state["tensors"]
        assert [each.equal(other) for each, other in zip(tensors, before, strict=True)] == [True, True]
        assert tensors[0].stride() == (1, WIDE)
        assert tensors[0] is back.state["same"]
        assert back.state["number"] == 2


def overlapping(parameter: torch.Tensor, state: State) -> None:
    whole = parameter.detach().flatten().clone()
    state["parts"] = [whole[:2], whole[1:]]


REFUSED: list[tuple[Make, str]] = [
    (overlapping, "/parts[1] overlap in memory, and would come back apart: keep a clone()"),
    (lambda _, state: state.update(all=[torch.eye(2).to_sparse()]), "is a tensor of the layout torch.sparse_coo"),
    (lambda _, state: state.update(all=[torch.ones(2).expand(3, 2)]), "is expanded, so that nothing can be copied"),
    (lambda _, state: state.update(all=[object()]), "o.within/m.0.weight/all[0] is a builtins.object"),
]


@pytest.mark.parametrize(("make", "words"), REFUSED)
def test_what_would_come_back_as_something_else_is_refused_in_words(script: Script, make: Make, words: str) -> None:
    model = network()
    objects = {"m": model, "o": Made(model.parameters(), make)}
    with script.runs(objects) as (_, kept):
        train({"model": model, "optimizer": objects["o"]})
        kept.step(0)
        assert words in script.not_saved(kept)


def test_a_sparse_tensor_of_an_object_is_refused_before_the_first_step(script: Script) -> None:
    held = holder(torch.eye(3).to_sparse())
    with pytest.raises(KeptStateError, match="is a tensor of the layout"), script.runs({"held": held}):
        pass


def test_a_tensor_that_is_a_key_comes_back_as_a_key() -> None:
    nested = NestedTensors(0)
    key = torch.ones(2)
    [(restored, value)] = from_plain(to_plain({key: 1}, "state", nested)).items()
    assert (restored.tolist(), value, nested.tensors) == ([1.0, 1.0], 1, {})
