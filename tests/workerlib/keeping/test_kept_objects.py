"""What a script may keep: it is saved and brought back exactly, and what cannot be is refused in words."""

import json
import math
import random
import sys
from collections import Counter, OrderedDict, deque
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from workerlib.contract.manifest import ManifestError, lay_out, read_layout
from workerlib.keeping import random_state
from workerlib.keeping.adapter import Adapter
from workerlib.keeping.kept_errors import KeptStateError, UnfitStateError
from workerlib.keeping.kept_objects import adapt
from workerlib.keeping.pieces import SavedTensors, piece_of, views_of
from workerlib.keeping.plain_values import from_plain, to_plain

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
