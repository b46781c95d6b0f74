"""What runs in an optimizer's closure is within its step if parameters change before; what follows the closure is."""

from contextlib import suppress
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.support.kept_script import Script, network, state_of, train
from tests.support.programs import wait_until
from workerlib.keeping import keeper

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("named", [True, False])
def test_a_step_is_whole_until_the_closure_of_the_optimizer_has_returned(script: Script, named: bool) -> None:
    with script.trains() as (model, optimizer, kept):
        train(model, optimizer)
        kept.step(0)
        before = state_of({"model": model})

        def closure() -> torch.Tensor:
            script.saved(kept)
            raise ZeroDivisionError

        with suppress(ZeroDivisionError):
            optimizer.step(closure=closure) if named else optimizer.step(closure)
    fresh = network()
    with script.runs({"model": fresh, "optimizer": torch.optim.SGD(fresh.parameters(), lr=0.1)}) as (done, _):
        assert (done, state_of({"model": fresh})) == (0, before)


def test_a_step_is_not_whole_between_two_calls_of_a_closure(script: Script) -> None:
    model, problems = network(), list[str]()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    with script.runs({"model": model, "optimizer": optimizer}) as (_, kept):
        train(model)
        kept._saver.numbers.resume(0)

        def closure() -> torch.Tensor:
            problems.append(kept._saver.numbers.problem)
            optimizer.zero_grad()
            loss: torch.Tensor = model(torch.ones(4, 4).square()).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
            return loss

        optimizer.step(closure)  # type: ignore[no-untyped-call]  # torch has no types here
        assert problems[:2] == ["", "a step is not whole"]
        kept.step(1)
        assert not kept._saver.numbers.problem


class Early(torch.optim.SGD):
    """An optimizer that changes parameters before it calls its closure, as for a look at what is around them."""

    def step(self, closure: Any = None) -> Any:
        """Do so."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.add_(0.1)
        return super().step(closure)


def test_nothing_is_saved_in_a_closure_that_is_called_after_a_change(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "WAIT_S", 0.1)
    model = network()
    optimizer = Early(model.parameters(), lr=0.1)
    with script.runs({"model": model, "optimizer": optimizer}) as (_, kept):
        train(model, optimizer)
        kept.step(0)

        def closure() -> torch.Tensor:
            assert script.not_saved(kept) == "a step was not whole within 0.1 s"
            loss: torch.Tensor = model(torch.ones(4, 4)).sum()
            return loss

        wait_until("memory", lambda: not kept._saver.memory.obstacle())
        optimizer.step(closure)
        assert kept._saver.role.saves_at_intervals


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("meets", [True, False])
def test_what_ranks_share_is_saved_at_intervals_if_they_meet_while_parameters_change(
    script: Script, meets: bool
) -> None:
    with script.trains() as (model, optimizer, kept):
        dist.barrier()
        train(model, optimizer)
        if meets:
            dist.barrier()
        kept.step(0)
        dist.barrier()
        assert kept._saver.role.saves_at_intervals is meets


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("meets", [True, False])
def test_without_an_optimizer_what_ranks_share_is_saved_at_intervals_if_they_meet_in_a_step(
    script: Script, meets: bool
) -> None:
    tensor = torch.zeros(2)
    with script.runs({"tensor": tensor}) as (_, kept):
        for step in range(3):
            tensor += 1
            if meets:
                dist.barrier()
            kept.step(step)
        assert kept._saver.role.saves_at_intervals is meets
