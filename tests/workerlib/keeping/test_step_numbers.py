"""A state is kept only as that of a step that no other state has."""

import pytest

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
