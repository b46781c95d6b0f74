"""A step counts once training has changed the parameters: gradients that are summed up until then are done again."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.support.kept_script import Objects, Script, network, state_of
from workerlib.contract.channel_messages import NotSaved
from workerlib.keeping.keeper import StepKeeper

pytestmark = pytest.mark.slow

BATCHES = 4
"""The batches of an optimizer's step."""


def do_batches(model: nn.Module, optimizer: torch.optim.Optimizer, numbers: range, kept: StepKeeper | None) -> None:
    """Sum up the gradients of these batches, and step after each fourth one."""
    for number in numbers:
        model(torch.full((3, 4), number + 1.0).cumsum(0)).square().mean().backward()
        if number % BATCHES == BATCHES - 1:
            optimizer.step()
            optimizer.zero_grad()
        if kept is not None:
            kept.step(number)


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_round_that_ends_before_its_first_optimizer_step_loses_no_gradients(script: Script, world_size: int) -> None:
    """Each round ends within the batches of an optimizer's step, and the first and the third one do no such step."""
    ends = [2, 6, 7, 16]
    began = []
    for end in ends:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        objects: Objects = {"model": model, "optimizer": optimizer}
        with script.runs(objects, world_size) as (done, kept):
            began.append(done)
            kept._saver.role.saves_at_intervals = True
            do_batches(model, optimizer, range(done + 1, end), kept)
            if kept._saver.last_step >= 0:
                script.await_memory(kept)
        script.node.choose()
    assert began == [-1, -1, 3, 3]
    whole = network()
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.01, momentum=0.9)
    do_batches(whole, optimizer, range(16), None)
    assert state_of({"model": whole, "optimizer": optimizer}) == state_of(objects)


def write_data(weight: nn.Parameter) -> None:
    weight.data.sub_(weight.grad)  # type: ignore[arg-type]  # it has one


def write_in_place(weight: nn.Parameter) -> None:
    with torch.no_grad():
        weight.sub_(weight.grad)  # type: ignore[arg-type]  # it has one


@pytest.mark.parametrize("change", [write_data, write_in_place])
def test_training_without_an_optimizer_counts_where_it_changes_parameters(
    script: Script, change: Callable[[nn.Parameter], None]
) -> None:
    weight = nn.Parameter(torch.ones(3))
    with script.runs({"weight": weight}, world_size=1) as (_, kept):
        for number in range(7):
            weight.grad = torch.ones(3)
            if number % 3 == 2:
                change(weight)
            kept.step(number)
            assert kept._saver.last_step == (number - 2) // 3 * 3 + 2


def test_each_step_counts_where_no_parameter_has_gradients(script: Script) -> None:
    model, numbers = network().requires_grad_(requires_grad=False), {"batches": 0}
    with script.runs({"model": model, "numbers": numbers}, world_size=1) as (_, kept):
        for number in range(3):
            numbers["batches"] += 1
            kept.step(number)
        script.await_memory(kept)
    script.node.choose()
    again = {"batches": 0}
    with script.runs({"model": network().requires_grad_(requires_grad=False), "numbers": again}, 1) as (done, _):
        assert (done, again) == (2, {"batches": 3})


def test_a_tensor_without_gradients_tells_nothing_of_training(script: Script) -> None:
    model, losses = network(), {"sum": torch.zeros(1)}
    with script.runs({"losses": losses, "model": model}) as (_, kept):
        losses["sum"].add_(model(torch.ones(2, 4)).sum().detach())
        kept.step(0)
        assert kept._saver.last_step == -1


def test_a_rank_whose_small_state_is_saved_with_the_big_one_saves_no_later_random_numbers(script: Script) -> None:
    with script.trains() as (model, optimizer, kept):
        do_batches(model, optimizer, range(BATCHES), kept)
        script.await_memory(kept)
        kept._saver.role.saves_small = False  # as where buffers are on a GPU
        do_batches(model, optimizer, range(BATCHES, BATCHES + 1), kept)
        answer = kept._saver.save(0, last=False)
        assert isinstance(answer, NotSaved)
        assert "batches were done since that step" in answer.why


@pytest.mark.parametrize("replaces", [True, False])
def test_a_step_counts_whichever_tensor_is_trained_or_replaced(script: Script, *, replaces: bool) -> None:
    weights = {f"w{number}": torch.ones(3, requires_grad=True) for number in range(8)}
    with script.runs({"weights": weights}, world_size=1) as (_, kept):
        for number in range(5):
            if replaces:
                weights["w1"] = (weights["w1"].detach() * 2).requires_grad_()
            else:
                with torch.no_grad():
                    weights["w1"].mul_(2)
            kept.step(2 * number)
            assert kept._saver.last_step == 2 * number
            kept.step(2 * number + 1)
            assert kept._saver.last_step == 2 * number, "nothing was trained"
