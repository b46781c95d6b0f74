"""What a script may keep: it is saved and brought back exactly, and what cannot be is refused in words."""

import json
import math
import random
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import Optimizer

from tests.support.kept_script import Objects, Script, Stateful, network
from tests.support.programs import wait_until
from workerlib.contract.manifest import ManifestError, lay_out, read_layout
from workerlib.keeping import random_state
from workerlib.keeping.adapter import Adapter
from workerlib.keeping.kept_errors import KeptStateError, UnfitStateError
from workerlib.keeping.kept_objects import adapt
from workerlib.keeping.pieces import SavedTensors, piece_of, views_of
from workerlib.keeping.plain_values import BYTES_MAX, NestedTensors, from_plain, to_plain

pytestmark = pytest.mark.slow


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.frozensets(st.integers())
        | st.lists(inner).map(deque)
        | st.dictionaries(st.text(), inner).map(OrderedDict)
    ),
    max_leaves=20,
)


@given(value=PLAIN)
def test_values_come_back_as_they_were(value: Any) -> None:
    back = from_plain(json.loads(json.dumps(to_plain(value, "value"))))
    assert (back, type(back)) == (value, type(value))


@pytest.mark.parametrize(
    "value", [Counter({3: 2}), {"$tuple": 1}, math.inf, {1: {2: 3}}, torch.float16, {1, 2}, bytearray(b"x")]
)
def test_rarer_values_come_back_too(value: Any) -> None:
    back = from_plain(json.loads(json.dumps(to_plain(value, "value"))))
    assert (type(back), back) == (type(value), value)


@pytest.mark.parametrize("value", [torch.arange(3), torch.tensor(2.5), torch.empty(0), torch.eye(2).bool()])
def test_small_tensors_are_values_too(value: torch.Tensor) -> None:
    for array in (value, value.numpy()):
        back = from_plain(json.loads(json.dumps(to_plain(array, "value"))))
        assert type(back) is type(array)
        assert back.dtype == array.dtype
        assert torch.equal(torch.as_tensor(back), value)


def test_a_small_tensor_comes_back_on_its_type_of_device() -> None:
    kept = to_plain(torch.arange(3), "value")
    back = from_plain({"$tensor": [*kept["$tensor"], "meta"]})
    assert (back.device.type, back.dtype, back.shape) == ("meta", torch.int64, (3,))


@pytest.mark.parametrize("plain", [{"$dtype": "load"}, {"$tensor": ["hub", [1], "AAAA"]}, {"$dtype": "float33"}])
def test_a_type_that_is_none_is_refused(plain: Any) -> None:
    with pytest.raises(KeptStateError, match="is no type of a tensor's elements"):
        from_plain(plain)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": [object()]}, r"value\.a\[0\] is a builtins\.object"),
        (lambda: 0, "value is a builtins.function"),
        ({"big": torch.zeros(1 << 19)}, r"value\.big has 2,097,152 bytes"),
    ],
)
def test_what_json_cannot_hold_is_refused_with_its_path(value: Any, words: str) -> None:
    with pytest.raises(KeptStateError, match=words):
        to_plain(value, "value")


def moved(kept: dict[str, Adapter], fresh: dict[str, Adapter]) -> None:
    """Bring fresh objects to the state of others, by way of the bytes of a place."""
    tensors = [pair for kept_object in kept.values() for pair in kept_object.big_tensors()]
    layout = lay_out(piece_of(*pair) for pair in tensors)
    data = memoryview(bytearray(layout.end))
    data[: len(layout.manifest)] = layout.manifest
    for view, (_, tensor) in zip(views_of(layout, data), tensors, strict=True):
        view.copy_(tensor.detach())
    values = {name: json.loads(json.dumps(kept_object.values())) for name, kept_object in kept.items()}
    saved = SavedTensors()
    saved.add(read_layout(data), data)
    for name, kept_object in fresh.items():
        kept_object.make_missing(values[name], saved, torch.device("cpu"))
    saved.fill({name: target for adapter in fresh.values() for name, target in adapter.targets().items()})
    for name, kept_object in fresh.items():
        kept_object.load_values(values[name])


def test_tensors_and_numbers_are_brought_back_in_place() -> None:
    average = torch.zeros(3)
    notes: dict[str, Any] = {"tokens": 0, "new": 1, "seen": [1], "inner": {"mean": torch.zeros(2)}}
    inner = notes["inner"]["mean"]
    kept = {"average": torch.arange(3.0), "notes": {"tokens": 7, "seen": [1, 2], "inner": {"mean": torch.ones(2)}}}
    moved(adapt(kept), adapt({"average": average, "notes": notes}))
    assert average.tolist() == [0, 1, 2]
    assert notes == {"tokens": 7, "seen": [1, 2], "inner": {"mean": inner}}
    assert inner.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (3, r"n is 3, which cannot be brought back in place: put it into a dict, such as keep\(n={'n': 3}\)"),
        (open, "n is a builtin_function_or_method"),
    ],
)
def test_what_cannot_be_kept_is_refused_in_words(value: Any, words: str) -> None:
    with pytest.raises(KeptStateError, match=words):
        adapt({"n": value})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # this part of torch uses torch.jit
@pytest.mark.usefixtures("group")
def test_an_optimizer_of_which_each_rank_has_a_part_is_refused() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer  # noqa: PLC0415 - see above

    optimizer = ZeroRedundancyOptimizer(nn.Linear(2, 2).parameters(), torch.optim.SGD, lr=0.1)
    with pytest.raises(KeptStateError, match="not take a ZeroRedundancyOptimizer: keep the plain optimizer"):
        adapt({"optimizer": optimizer})


@given(cut=st.binary(max_size=80))
def test_a_damaged_manifest_is_refused(cut: bytes) -> None:
    with pytest.raises(ManifestError):
        read_layout(memoryview(cut + b"\xff"))


def test_random_numbers_go_on_as_they_would_have() -> None:
    def drawn() -> list[float]:
        return [random.random(), random.gauss(), float(np.random.randn()), torch.rand(1).item()]  # noqa: S311, NPY002

    state = random_state.RandomState()
    for _ in range(3):  # the second of two normal numbers is drawn before
        drawn()
        taken, plain = state.read(), json.loads(json.dumps(state.spare_normals()))
        tensors = {name: torch.frombuffer(bytearray(raw), dtype=torch.uint8) for name, raw in taken.items()}
        expected = [drawn() for _ in range(3)]
        random_state.restore(tensors, plain)
        assert [drawn() for _ in range(3)] == expected
    seeds = {random_state.reseed(1, 2, rank): drawn()[0] for rank in (0, 1, 0)}
    assert len(seeds) == len(set(seeds.values())) == 2


def test_a_module_forgets_what_the_step_that_broke_off_had_switched() -> None:
    """A GAN freezes its discriminator while the generator learns."""
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    module[0].bias.requires_grad_(False)
    [kept] = adapt({"model": module}).values()
    module.requires_grad_(False).eval()
    module[0].bias.requires_grad_(True)
    kept.discard_step()
    assert [parameter.requires_grad for parameter in module.parameters()] == [True, False]
    assert module.training
    assert module[1].training


class Prepared(torch.optim.Optimizer):
    """What a framework makes of an optimizer: it has the same groups and state, and did not call torch's `__init__`."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner, self.param_groups, self.state = inner, inner.param_groups, inner.state

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # torch returns the loss
        """Let the inner one do it."""
        self.inner.step(closure)


def test_an_optimizer_around_another_one_drops_gradients_and_goes_on() -> None:
    model = nn.Linear(2, 2)
    optimizer = Prepared(torch.optim.SGD(model.parameters(), lr=0.1))
    [kept] = adapt({"optimizer": optimizer}).values()
    model(torch.ones(1, 2)).sum().backward()
    kept.discard_step()
    assert [parameter.grad for parameter in model.parameters()] == [None, None]
    optimizer.step()


def test_an_object_forgets_what_was_added_to_it_since_keep_and_gets_it_back_from_a_step_that_has_it() -> None:
    """A worker that stays in its process may have done so in a step that nobody completed."""
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module.register_buffer("mean", None)
    objects: dict[str, Any] = {
        "model": module,
        "optimizer": torch.optim.SGD(module[1].parameters(), lr=0.1),
        "notes": {"first": torch.ones(1), "list": [torch.ones(1)]},
    }
    adapters = adapt(objects)
    fresh = {name: kept.values() for name, kept in adapters.items()}
    module.mean = torch.ones(2)
    objects["optimizer"].param_groups[0]["swa_lr"] = 0.1
    objects["optimizer"].add_param_group({"params": list(module[0].parameters())})
    objects["notes"] |= {"mean": torch.ones(2), 3: torch.ones(1)}
    objects["notes"]["list"].append(torch.ones(2))
    later = adapters["optimizer"].values()
    for kept in adapters.values():
        kept.discard_step()
    again = adapt(objects)
    assert not dict(module.named_buffers())
    again["notes"].load_values(fresh["notes"])
    assert [name for name, _ in again["notes"].big_tensors()] == ["notes.first", "notes.list.0"]
    assert {name: kept.values() for name, kept in again.items()} == fresh
    again["optimizer"].make_missing(later, SavedTensors(), torch.device("cpu"))
    again["optimizer"].load_values(later)
    assert again["optimizer"].values() == later


class Scaled(nn.Module):
    """A module whose scale is extra state, as those of float8 have it."""

    scale = 1.0

    def get_extra_state(self) -> float:
        """Return the scale."""
        return self.scale

    def set_extra_state(self, state: float) -> None:
        """Take another scale."""
        self.scale = state


@pytest.mark.parametrize("is_root", [True, False])
def test_extra_state_fits_a_model_that_is_wrapped_in_another_round(is_root: bool) -> None:
    """A script may wrap its model only where there are several ranks."""

    def make() -> tuple[nn.Module, Scaled]:
        scaled = Scaled()
        return scaled if is_root else nn.Sequential(nn.Linear(2, 2), scaled), scaled

    (kept, kept_scaled), (fresh, fresh_scaled) = make(), make()
    kept_scaled.scale = 14.5
    moved(adapt({"model": nn.DataParallel(kept)}), adapt({"model": fresh}))
    assert fresh_scaled.scale == 14.5


def test_extra_state_that_was_not_kept_is_not_passed_over() -> None:
    [kept] = adapt({"model": nn.Sequential(nn.Linear(2, 2), Scaled())}).values()
    with pytest.raises(UnfitStateError, match=r"the extra state of model\.1 was not kept"):
        kept.load_values(None)


class Mean(nn.Module):
    """A metric, as torchmetrics has those that are persistent: its sum is in the state dict, and is no buffer."""

    total = torch.tensor(0.0)

    def state_dict(self, *_: Any, **__: Any) -> dict[str, Any]:  # type: ignore[override]  # torch overloads it
        """Return a copy of the sum."""
        return {"total": self.total.clone()}

    def load_state_dict(self, state_dict: Any, *_: Any, **__: Any) -> Any:
        """Take another sum."""
        self.total = state_dict["total"]


def test_a_metric_whose_sums_are_no_buffers_is_brought_back() -> None:
    kept, fresh = Mean(), Mean()
    kept.total = torch.tensor(14.5)
    moved(adapt({"metric": kept}), adapt({"metric": fresh}))
    assert fresh.total.item() == 14.5


def test_a_sharded_tensor_of_torch_2_4_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    class DTensor(torch.Tensor):
        _local_tensor = torch.ones(2)

    monkeypatch.setitem(sys.modules, "torch.distributed.tensor", ModuleType("tensor"))
    monkeypatch.setitem(sys.modules, "torch.distributed._tensor", SimpleNamespace(DTensor=DTensor))
    with pytest.raises(KeptStateError, match=r"w is sharded, .* needs torch 2\.5"):
        piece_of("w", torch.ones(2).as_subclass(DTensor))


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


def train_any(objects: Objects) -> None:
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
            train_any(objects)
            kept.step(step)
            wait_until("memory for what has grown", lambda: not kept._saver.memory.awaited)
        script.saved(kept)
        before = states(objects)
    train_any(objects)
    after = states(objects), shown(objects["model"].state_dict())
    back = fresh()
    with script.runs(back) as (done, _):
        assert done == 3
        assert states(back) == before
    train_any(back)
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
        train_any(objects)
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
        train_any({"model": model, "optimizer": objects["o"]})
        kept.step(0)
        assert words in script.not_saved(kept)


def test_a_tensor_that_is_a_key_comes_back_as_a_key() -> None:
    nested = NestedTensors(0)
    key = torch.ones(2)
    [(restored, value)] = from_plain(to_plain({key: 1}, "state", nested)).items()
    assert (restored.tolist(), value, nested.tensors) == ([1.0, 1.0], 1, {})
