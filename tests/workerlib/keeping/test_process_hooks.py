"""What a keeper learns by its hooks: where a step begins and ends, also in a closure, and how a script ends."""

import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import workerlib
from tests.support.keeping import Keep, play
from tests.support.kept_script import Script, network, state_of, train
from tests.support.programs import wait_until
from workerlib.keeping import keeper
from workerlib.keeping.process_hooks import has_failed, hooked_module

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


def plain(module: nn.Module) -> nn.Module:
    return module


def compiled(module: nn.Module) -> nn.Module:
    wrapped: nn.Module = torch.compile(module, backend="eager")  # type: ignore[assignment]  # a module, of a module
    return wrapped


def compiled_in_place(module: nn.Module) -> nn.Module:
    module.compile(backend="eager")
    return module


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(("make", "within"), [(plain, True), (compiled, False), (compiled_in_place, False)])
def test_the_module_within_ddp_has_the_hook_unless_it_is_compiled(
    make: Callable[[nn.Module], nn.Module], within: bool
) -> None:
    inner = make(nn.Linear(2, 2))
    around = DistributedDataParallel(inner)
    assert hooked_module(around) is (inner if within else around)
    assert hooked_module(inner) is inner


STEPS = 50


class Training:
    """A training that counts its steps in a kept tensor, before its optimizer changes anything."""

    def __init__(self, ctx: workerlib.Context) -> None:
        """Go on from the step that was kept."""
        self.ctx, self.model, self.notes = ctx, torch.nn.Linear(2, 2), {"steps": torch.zeros(1)}
        self.optimizer = torch.optim.SGD(self.model.parameters())
        self.done = ctx.keep(model=self.model, optimizer=self.optimizer, notes=self.notes)

    def do_all(self, in_last_step: Callable[[], None]) -> None:
        """Do all steps; call a function within the last one."""
        for step in range(self.done + 1, STEPS):
            self.notes["steps"] += 1
            if step == STEPS - 1:
                in_last_step()
            self.model(torch.ones(2)).sum().backward()
            self.optimizer.step()
            self.ctx.step(step)


def train_and_exit(ctx: workerlib.Context) -> None:
    """Do all steps, and exit as a script does that is done."""
    Training(ctx).do_all(lambda: None)
    sys.exit(0)


def train_in_a_block() -> None:
    with workerlib.init() as ctx:
        train_and_exit(ctx)


def train_in_rounds() -> None:
    workerlib.elastic(train_and_exit)()


@pytest.mark.parametrize("work", [train_in_a_block, train_in_rounds])
def test_the_last_step_is_kept_although_no_other_rank_has_it(keep: Keep, work: Callable[..., None]) -> None:
    play(keep, work, 1, 1)
    assert keep.choose().step == STEPS - 1


def leave(*_: object) -> None:
    sys.exit(0)


def leave_by_one_signal(_signum: int, _frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(0)


class Handler:
    """A handler that is an object."""

    def __call__(self, *_: object) -> None:
        """Exit."""
        sys.exit(0)


def exit_by(handler: Callable[..., None]) -> None:
    signal.signal(signal.SIGTERM, handler)
    with workerlib.init() as ctx:
        Training(ctx).do_all(lambda: signal.raise_signal(signal.SIGTERM))


def exit_after_an_error() -> None:
    with workerlib.init() as ctx:
        try:
            Training(ctx).do_all(lambda: signal.raise_signal(signal.SIGINT))
        except KeyboardInterrupt:
            sys.exit(0)


def compare() -> None:
    """Fail unless the state is that of a whole step."""
    with workerlib.init() as ctx:
        training = Training(ctx)
        assert training.done >= 0
        assert training.notes["steps"].item() == training.done + 1


@pytest.mark.parametrize(
    "work", [*(partial(exit_by, handler) for handler in (leave, leave_by_one_signal, Handler())), exit_after_an_error]
)
def test_an_exit_within_a_step_leaves_the_state_of_a_whole_one(keep: Keep, work: Callable[..., None]) -> None:
    play(keep, work, 1, 1)
    keep.choose()
    play(keep, compare, 1, 2)


@pytest.mark.parametrize(("code", "failed"), [(None, False), (0, False), (3, True), ("no data", True)])
def test_an_exit_has_failed_if_its_code_says_so(code: object, failed: bool) -> None:
    assert has_failed(SystemExit(code)) is failed
