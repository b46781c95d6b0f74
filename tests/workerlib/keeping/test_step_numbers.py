"""A state is kept only as that of a step of its own: gradients that are summed up until then are done again."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

from tests.support.kept_script import Script, network, network_and_optimizer, state_of
from workerlib.contract.channel_messages import NotSaved
from workerlib.keeping.keeper import StepKeeper
from workerlib.keeping.step_numbers import UNCHANGED, UNREPORTED, StateEvent, StateStage, StepNumbers

pytestmark = pytest.mark.slow


def stepped(numbers: StepNumbers, number: int, times: int = 1) -> bool:
    """Let optimizers step, and then the script say so."""
    for _ in range(times):
        numbers.on_optimizer(1)
    return numbers.on_step(number)


def test_each_higher_number_is_a_new_step() -> None:
    numbers = StepNumbers()
    assert [stepped(numbers, number) for number in (0, 1, 5, 9)] == [True] * 4
    assert (numbers.last_step, numbers.next_step, numbers.problem) == (9, 13, "")
    numbers.on_optimizer(1)
    assert numbers.problem == "a step is not whole"


def test_several_optimizers_make_one_step() -> None:
    numbers = StepNumbers()
    assert stepped(numbers, 3, times=5)
    assert numbers.last_step == 3


def test_gradients_that_are_summed_up_are_part_of_no_step(caplog: pytest.LogCaptureFixture) -> None:
    numbers = StepNumbers()
    assert [stepped(numbers, number, times=number % 4 == 0) for number in range(9)] == [True, *[False] * 3] * 2 + [True]
    assert numbers.last_step == 8
    assert [numbers.on_step(number) for number in (9, 10, 11)] == [False] * 3
    assert numbers.next_step == 12
    assert not numbers.on_step(8), "the same number, as of a script that counts the optimizer's steps"
    assert numbers.is_accumulating
    assert not numbers.problem
    assert not caplog.records


def test_a_step_that_a_gradient_scaler_leaves_out_shifts_no_number() -> None:
    numbers = StepNumbers()
    assert [stepped(numbers, number, times=number != 4) for number in range(6)] == [True] * 4 + [False, True]
    assert (numbers.last_step, numbers.next_step) == (5, 6)


def test_without_an_optimizer_of_torch_every_number_counts() -> None:
    numbers = StepNumbers()
    assert [numbers.on_step(number, trained=True) for number in (1, 2)] == [True, True]


def test_gradients_that_are_summed_up_at_the_beginning_of_a_round_are_part_of_no_step() -> None:
    numbers = StepNumbers()
    numbers.resume(7)
    assert [numbers.on_step(number) for number in (8, 9, 10)] == [False] * 3
    assert (numbers.last_step, numbers.next_step, numbers.problem) == (7, 11, "")
    assert numbers.is_accumulating
    assert stepped(numbers, 11)
    assert not numbers.is_accumulating


def test_a_script_whose_kept_parameters_never_change_is_told(caplog: pytest.LogCaptureFixture) -> None:
    numbers = StepNumbers()
    assert not any(numbers.on_step(number) for number in range(2 * UNCHANGED))
    [record] = caplog.records
    assert record.getMessage() == (
        "100 calls of ctx.step, and no parameter that was given to ctx.keep has changed: no step is kept before one "
        "has. Give it the tensors that are trained, such as the dict that is passed to torch.func.functional_call, and "
        "no parameters that are not"
    )


@pytest.mark.parametrize("number", [0, 7])
def test_a_number_that_is_no_higher_names_nothing(number: int, caplog: pytest.LogCaptureFixture) -> None:
    numbers = StepNumbers()
    numbers.resume(7)
    assert not stepped(numbers, number)
    assert not stepped(numbers, number)
    assert (numbers.last_step, numbers.problem) == (7, "the last step has no number of its own")
    assert [record.getMessage() for record in caplog.records] == [
        f"step {number} was reported after step 7: only a step with a higher number is kept"
    ]
    assert stepped(numbers, 8)
    assert not numbers.problem


def test_who_never_says_that_a_step_is_done_is_told(caplog: pytest.LogCaptureFixture) -> None:
    numbers = StepNumbers()
    assert [numbers.on_optimizer(1) for _ in range(2 * UNREPORTED)].index(True) == UNREPORTED - 1
    assert [record.getMessage() for record in caplog.records] == [
        "100 steps of an optimizer without ctx.step: call it after each, or none is kept"
    ]


def test_a_named_phase_without_steps_is_no_lack_of_them(caplog: pytest.LogCaptureFixture) -> None:
    numbers = StepNumbers()
    assert not any(numbers.on_optimizer(1, in_section=True) for _ in range(2 * UNREPORTED))
    assert (numbers.is_changing, numbers.lacks_steps) == (True, False)
    assert not caplog.records
    assert [numbers.on_optimizer(2) for _ in range(UNREPORTED)].index(True) == UNREPORTED - 1


def test_a_script_that_has_trained_lacks_steps_until_it_reports_one() -> None:
    numbers = StepNumbers()
    lacks = [numbers.lacks_steps]
    for number in range(2):
        numbers.on_optimizer(1)
        lacks.append(numbers.lacks_steps)
        numbers.on_step(number)
    assert lacks == [False, True, False]


def test_an_optimizer_for_each_parameter_is_no_lack_of_steps(caplog: pytest.LogCaptureFixture) -> None:
    numbers = StepNumbers()
    for number in range(3):
        assert not any(numbers.on_optimizer(1 + each) for each in range(2 * UNREPORTED))
        assert numbers.on_step(number)
    assert not caplog.records


def test_a_script_that_has_once_said_that_a_step_is_done_may_do_so_again() -> None:
    numbers = StepNumbers()
    assert stepped(numbers, 1)
    assert not any(numbers.on_optimizer(1) for _ in range(2 * UNREPORTED))


def test_torn_state_stays_torn_whatever_training_does_then() -> None:
    numbers = StepNumbers()
    assert stepped(numbers, 1)
    numbers.stop_keeping("a value cannot be kept")
    assert stepped(numbers, 2)
    assert numbers.problem == "a value cannot be kept"
    numbers.apply(StateEvent.TORN)
    for event in StateEvent:
        numbers.apply(event)
    assert (numbers.stage, numbers.problem) == (StateStage.TORN, "training has ended within a step")


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
    momentum = partial(torch.optim.SGD, lr=0.01, momentum=0.9)
    ends = [2, 6, 7, 16]
    began = []
    for end in ends:
        objects = network_and_optimizer(momentum)
        with script.runs(objects, world_size) as (done, kept):
            began.append(done)
            kept._saver.role.saves_at_intervals = True
            do_batches(objects["model"], objects["optimizer"], range(done + 1, end), kept)
            if kept._saver.last_step >= 0:
                script.await_memory(kept)
        script.node.choose()
    assert began == [-1, -1, 3, 3]
    whole = network_and_optimizer(momentum)
    do_batches(whole["model"], whole["optimizer"], range(16), None)
    assert state_of(whole) == state_of(objects)


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
