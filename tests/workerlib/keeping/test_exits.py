"""A script that ends by an exit in its block: its last step is kept, and nothing of a step that it has not done."""

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import workerlib
from tests.support.keeping import Keep, play
from workerlib.keeping.process_hooks import has_failed

pytestmark = pytest.mark.slow

STEPS = 50


@pytest.fixture
def keep(tmp_path: Path) -> Iterator[Keep]:
    keep = Keep(tmp_path, 1)
    yield keep
    keep.close()


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


def train(ctx: workerlib.Context) -> None:
    """Do all steps, and exit as a script does that is done."""
    Training(ctx).do_all(lambda: None)
    sys.exit(0)


def train_in_a_block() -> None:
    with workerlib.init() as ctx:
        train(ctx)


def train_in_rounds() -> None:
    workerlib.elastic(train)()


@pytest.mark.parametrize("work", [train_in_a_block, train_in_rounds])
def test_the_last_step_is_kept_although_no_other_rank_has_it(keep: Keep, work: Callable[..., None]) -> None:
    play(keep, work, 1, 1)
    assert keep.choose().step == STEPS - 1


def exit_by_a_handler() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with workerlib.init() as ctx:
        Training(ctx).do_all(lambda: signal.raise_signal(signal.SIGTERM))


def exit_by_a_handler_for_one_signal() -> None:
    def handle(_signum: int, _frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(0)

    signal.signal(signal.SIGTERM, handle)
    with workerlib.init() as ctx:
        Training(ctx).do_all(lambda: signal.raise_signal(signal.SIGTERM))


class Handler:
    """A handler that is an object."""

    def __call__(self, *_: object) -> None:
        """Exit."""
        sys.exit(0)


def exit_by_an_object() -> None:
    signal.signal(signal.SIGTERM, Handler())
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
    "work", [exit_by_a_handler, exit_by_a_handler_for_one_signal, exit_by_an_object, exit_after_an_error]
)
def test_an_exit_within_a_step_leaves_the_state_of_a_whole_one(keep: Keep, work: Callable[..., None]) -> None:
    play(keep, work, 1, 1)
    keep.choose()
    play(keep, compare, 1, 2)


@pytest.mark.parametrize(("code", "failed"), [(None, False), (0, False), (3, True), ("no data", True)])
def test_an_exit_has_failed_if_its_code_says_so(code: object, failed: bool) -> None:
    assert has_failed(SystemExit(code)) is failed
