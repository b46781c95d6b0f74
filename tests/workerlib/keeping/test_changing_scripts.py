"""State that changes where nobody expects it: something is made later, or a step begins during a save."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.prune import l1_unstructured

from tests.support.kept_script import Objects, Script, do_steps, network, network_and_optimizer, state_of, train
from tests.support.programs import wait_until
from workerlib.keeping.adapter import Adapter
from workerlib.keeping.generations import GenerationWriter
from workerlib.keeping.kept_errors import UnfitStateError
from workerlib.keeping.kept_objects import adapt
from workerlib.keeping.pieces import SavedTensors

pytestmark = pytest.mark.slow


def last_layer() -> Objects:
    """Return a network of which only the last layer is trained."""
    model = network()
    return {"model": model, "optimizer": torch.optim.Adam(model[2].parameters())}  # type: ignore[index]  # the last layer


def unfreeze(objects: Objects) -> None:
    """Train the first layer as well."""
    objects["optimizer"].add_param_group({"params": list(objects["model"][0].parameters()), "lr": 0.002})


@pytest.mark.parametrize("before", [True, False])
def test_a_group_of_parameters_that_is_added_later_is_kept_as_well(script: Script, before: bool) -> None:
    """A script may add it before it calls `keep` when it goes on from there, or not at all."""
    objects = last_layer()
    with script.runs(objects) as (_, kept):
        for step in range(3):
            if step == 1:
                unfreeze(objects)
            train(*objects.values())
            kept.step(step)
        script.saved(kept)
        state = state_of(objects)
    for done in (2, 3):  # the second time, it was added by nobody but the round before
        fresh = last_layer()
        if before:
            unfreeze(fresh)
        with script.runs(fresh) as (began, kept):
            assert began == done
            assert state_of(fresh) == state
            train(*fresh.values())
            kept.step(done + 1)
            script.saved(kept)
            state = state_of(fresh)


def test_a_group_of_parameters_that_no_module_names_is_not_made_by_guess() -> None:
    objects, nothing = last_layer(), SavedTensors()
    before = adapt(objects)["optimizer"]
    objects["optimizer"].add_param_group({"params": list(nn.Linear(2, 2).parameters())})
    fresh = adapt(last_layer())["optimizer"]
    fresh.make_missing(before.values(), nothing, torch.device("cpu"))
    assert fresh.targets() == {}
    with pytest.raises(UnfitStateError, match="optimizer has a different number of parameter groups than was kept"):
        fresh.load_values(before.values())


def average(means: dict[Any, Any], model: nn.Module, name: Callable[[int], Any]) -> None:
    """Have the mean of weights in a dict, and make what is not there yet."""
    for number, parameter in enumerate(model.parameters()):
        now = parameter.detach()
        means[name(number)] = means[name(number)].lerp(now, 0.1) if name(number) in means else now.clone()


@pytest.mark.parametrize("name", [lambda number: f"layer.{number}", lambda number: number])
def test_tensors_that_a_script_makes_in_its_first_steps_come_back(script: Script, name: Callable[[int], Any]) -> None:
    def fresh() -> Objects:
        return network_and_optimizer(notes={"means": {}, "seen": [], "best": {"loss": 1.0}})

    objects = fresh()
    with script.runs(objects) as (_, kept):
        for step in range(6):
            train(objects["model"], objects["optimizer"])
            average(objects["notes"]["means"], objects["model"], name)
            objects["notes"]["seen"] = [*objects["notes"]["seen"], torch.tensor(step)]
            kept.step(step)
            wait_until("memory", lambda: not kept._saver.memory.awaited)
        script.saved(kept)
        before = state_of(objects)
    again = fresh()
    script.check_resumed(again, 5, before)
    assert again["notes"]["means"].keys() == objects["notes"]["means"].keys()
    assert again["notes"]["seen"] == [*map(torch.tensor, range(6))]


class Centred(nn.Module):
    """A layer with a mean that its first forward makes, and gives up later."""

    mean: torch.Tensor | None

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layer = nn.Linear(4, 4)
        self.register_buffer("mean", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take the mean away."""
        self.mean = x.mean(0) if self.mean is None else self.mean.lerp(x.mean(0), 0.1)
        result: torch.Tensor = self.layer(x - self.mean)
        return result


@pytest.mark.parametrize("stays", [True, False])
def test_a_buffer_that_is_made_or_given_up_later_is_kept_as_it_is(script: Script, stays: bool) -> None:
    def fresh() -> Objects:
        model = Centred()
        return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}

    objects = fresh()
    with script.runs(objects) as (_, kept):
        for step in range(3):
            train(*objects.values())
            if step == 2 and not stays:
                objects["model"].mean = None
            kept.step(step)
            wait_until("memory", lambda: not kept._saver.memory.awaited)
        script.saved(kept)
        before = state_of(objects)
    again = fresh()
    script.check_resumed(again, 2, before)
    assert (again["model"].mean is not None) is stays


@pytest.mark.parametrize(
    "change",
    [
        lambda notes: notes["loss"].add_(1),
        lambda notes: notes.update(loss=notes["loss"] * 0.9),
        lambda notes: notes.update(worst=torch.ones(2)),
    ],
)
def test_tensors_of_a_dict_that_a_step_has_changed_before_its_optimizer_are_not_saved_as_those_of_the_last_step(
    script: Script, change: Callable[[dict[str, torch.Tensor]], object]
) -> None:
    notes = {"loss": torch.zeros(2)}
    with script.trains(notes=notes) as (model, optimizer, kept):
        do_steps(kept, model, optimizer)
        script.await_memory(kept)
        change(notes)
        assert script.not_saved(kept) == "tensors have changed since the last step was done"


def follow_in_place(mean: torch.Tensor) -> None:
    """Move a weight of a moving average."""
    with torch.no_grad():
        mean.mul_(0.9)


def follow_anew(mean: torch.Tensor) -> None:
    """Do so as MoCo does, which torch does not count."""
    mean.data = mean.data * 0.9


@pytest.mark.parametrize("follow", [follow_in_place, follow_anew])
def test_a_moving_average_that_moved_before_the_optimizer_is_not_saved_as_that_of_the_last_step(
    script: Script, follow: Callable[[torch.Tensor], None]
) -> None:
    mean = network().requires_grad_(requires_grad=False)
    with script.trains(mean=mean) as (model, optimizer, kept):
        do_steps(kept, model, optimizer)
        script.await_memory(kept)
        for parameter in mean.parameters():
            follow(parameter)
        assert script.not_saved(kept) == "tensors have changed since the last step was done"


@pytest.mark.parametrize("follow", [follow_in_place, follow_anew])
@pytest.mark.parametrize("begins_late", [False, True])
def test_a_moving_average_is_found_among_many_parameters_that_stay(
    begins_late: bool, follow: Callable[[torch.Tensor], None]
) -> None:
    backbone = nn.ModuleList(nn.Linear(2, 2) for _ in range(50)).requires_grad_(requires_grad=False)
    mean = nn.Linear(2, 2).requires_grad_(requires_grad=False)
    writer = GenerationWriter(adapt({"backbone": backbone, "mean": mean, "model": network()}), world_size=2)
    writer.record_step()
    if begins_late:
        writer.record_step()
        follow(mean.bias)
        for _ in range(20):
            writer.record_step()
    for _ in range(2):
        follow(mean.bias)
        assert writer.has_changed()
        writer.record_step()
        assert not writer.has_changed()


@pytest.mark.parametrize("from_begin", [True, False])
def test_a_tensor_made_in_inference_mode_may_be_in_a_dict(script: Script, from_begin: bool) -> None:
    """Torch counts no changes of such a tensor."""
    with torch.inference_mode():
        best = torch.ones(())
    notes = {"best": best} if from_begin else {}
    with script.trains(notes=notes) as (model, optimizer, kept):
        do_steps(kept, model, optimizer)
        notes["best"] = best
        train(model, optimizer)
        kept.step(3)
        assert script.saved(kept) == 3


def test_a_tensor_without_an_address_that_comes_into_a_dict_ends_keeping_and_not_the_training(script: Script) -> None:
    notes = dict[str, torch.Tensor]()
    with script.trains(notes=notes) as (model, optimizer, kept):
        do_steps(kept, model, optimizer)
        notes["seen"] = torch.eye(3).to_sparse()
        train(model, optimizer)
        kept.step(3)
        why = "notes.seen is a tensor of the layout torch.sparse_coo, which cannot be kept"
        assert script.not_saved(kept) == why


class Weights(dict[str, torch.Tensor]):
    """Weights of which one changes when somebody looks at them again, as if training went on meanwhile."""

    looks: int | None = None

    def items(self) -> Any:
        """Change one, from the second look on that is counted."""
        if self.looks is not None:
            if self.looks:
                self["last"].add_(1)
            self.looks += 1
        return super().items()


def get_buffer(module: nn.Module) -> None:
    module.register_buffer("late", torch.ones(2))


def get_parameter(module: nn.Module) -> None:
    module.register_parameter("late", nn.Parameter(torch.ones(2)))


def get_module(module: nn.Module) -> None:
    module.add_module("late", nn.Linear(2, 2))


def be_pruned(module: nn.Module) -> None:
    l1_unstructured(module[0], "weight", 0.5)  # type: ignore[index, no-untyped-call]  # torch has no types here


def get_another_head(module: nn.Module) -> None:
    module[2].weight = nn.Parameter(torch.ones(2, 6))  # type: ignore[index]  # the last layer


@pytest.mark.parametrize("change", [get_buffer, get_parameter, get_module, be_pruned, get_another_head])
def test_no_step_is_kept_of_a_module_that_was_another_one_when_keep_was_called(
    script: Script, change: Callable[[nn.Module], None]
) -> None:
    with script.trains() as (model, optimizer, kept):
        train(model, optimizer)
        kept.step(0)
        script.await_memory(kept)
        change(model)
        train(model, optimizer)
        kept.step(1)
        assert "model has other parameters or buffers than when keep() was called" in script.not_saved(kept)


def test_a_parameter_that_is_replaced_after_the_last_save_fails_no_training(script: Script) -> None:
    with script.trains() as (model, optimizer, kept):
        do_steps(kept, model, optimizer)
        script.await_memory(kept)
        kept._saver.role.saves_small = False
        [(name, parameter), *_] = model.named_parameters()
        place, _, key = name.rpartition(".")
        setattr(model.get_submodule(place), key, nn.Parameter(parameter.detach().clone()))
        kept.close(failed=False)


def state_read(kept: Adapter) -> dict[str, Any]:
    """Return the entries of the state that an optimizer's adapter reads, by parameter and key."""
    values = {f"{name}/{key}": value for name, each in kept.values()["state"].items() for key, value in each.items()}
    return {name.removeprefix("optimizer.state/"): tensor for name, tensor in kept.big_tensors()} | values


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"warm": 1}, {"main": 2}),
        ({"number": torch.ones(())}, {"number": 5.0}),
        ({"number": 5.0}, {"number": torch.ones(())}),
        ({"number": 5}, {}),
    ],
)
def test_an_optimizer_may_exchange_the_entries_of_its_state(first: dict[str, Any], then: dict[str, Any]) -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight])
    kept = adapt({"optimizer": optimizer})["optimizer"]
    for entries in (first, then):
        optimizer.state.clear()
        optimizer.state.update({weight: {**entries}} if entries else {})
        assert state_read(kept) == {f"#0/{key}": value for key, value in entries.items()}


def test_an_optimizer_may_make_its_state_in_another_order() -> None:
    weights = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizer = torch.optim.SGD(weights)
    kept = adapt({"optimizer": optimizer})["optimizer"]
    for order in (weights, weights[::-1]):
        optimizer.state.clear()
        optimizer.state.update({weight: {f"number {at}": at} for at, weight in enumerate(order)})
        first, second = (at for weight in weights for at, each in enumerate(order) if each is weight)
        assert state_read(kept) == {f"#0/number {first}": first, f"#1/number {second}": second}


def test_an_optimizer_may_get_other_parameters_in_place_of_its_own() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], momentum=0.9)
    kept = adapt({"optimizer": optimizer})["optimizer"]
    for number in range(2):
        weight = nn.Parameter(torch.ones(2))
        weight.grad = torch.full((2,), float(number))
        optimizer.param_groups[0]["params"] = [weight]
        optimizer.step()
        assert state_read(kept)["#0/momentum_buffer"] is optimizer.state[weight]["momentum_buffer"]


def test_a_buffer_that_is_not_in_the_state_dict_may_come_later(script: Script) -> None:
    with script.trains() as (model, optimizer, kept):
        train(model, optimizer)
        model.register_buffer("cache", torch.ones(2), persistent=False)
        kept.step(0)
        script.saved(kept)


def test_a_step_that_begins_while_the_one_before_is_copied_spoils_no_state(script: Script) -> None:
    weights = Weights(first=torch.zeros(4), last=torch.zeros(4))
    with script.runs({"weights": weights}) as (_, kept):
        for step in range(2):
            for weight in weights.values():
                weight.add_(1)
            kept.step(step)
            script.await_memory(kept)
        weights.looks = 0
        assert script.not_saved(kept) == "tensors have changed while they were copied"
        weights.looks = None
    assert script.node.choose().step == -1
