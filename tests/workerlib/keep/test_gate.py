"""The law of a device that is behind the host: a step that is kept equals that of an undisturbed training, bit by bit.

It is played over the orders of the peer's death, of what the device is given, of saves and of aborts. Each gate that
leaves out one thing breaks it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import ErrorType
from torch.distributed import distributed_c10d

from tests.support.kept_script import Script
from tests.support.late_device import (
    STEPS,
    Device,
    Event,
    Play,
    PlayedGate,
    Training,
    kept_steps,
    listener,
    undisturbed,
)
from workerlib.keep import generations, keeper
from workerlib.keep.gate import Gate, failure_of_groups
from workerlib.keep.kept_errors import LeftRoundError

ORDERS = (
    (Event.SAVE, Event.LEAVE),
    (Event.LEAVE, Event.SAVE),
    (Event.TORCH_ABORTS, Event.SAVE),
    (Event.SPOILS, Event.SAVE),
)

TURNS = 18
"""More than there are until the training is over or waits for good."""


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the path of a node's socket. Nothing waits: what comes too late is an order of events like others."""
    for name in ("WITHIN_S", "WAIT_S", "STAND_STILL_S"):
        monkeypatch.setattr(keeper, name, 0.0)
    for name in ("WITHIN_S", "TOUCH_AFTER_S"):
        monkeypatch.setattr(generations, name, 0.0)
    with listener(tmp_path / "node"):
        yield tmp_path / "node"


def faults(training: Training, kind: type[PlayedGate], node: Path) -> Iterator[str]:
    """Play all orders, and yield what is wrong in each of them."""
    expected = undisturbed(training)
    deaths = range(training.collectives, training.collectives * STEPS)
    for dies_at, is_lazy, first, gap, order in product(deaths, (False, True), range(TURNS), (1, 4), ORDERS):
        events = {first: order[0], first + gap: order[1]}
        play = Play(training, dies_at, is_lazy, dict(events))
        kept = kept_steps(play, kind, node)
        what = f"collective {dies_at}, {is_lazy=}, {events}"
        for step in kept:
            if kept[step] != expected[step]:
                yield f"{what}: step {step} is {kept[step]} and not {expected[step]}"
        if play.owed >= 0 and play.owed not in kept:
            yield f"{what}: step {play.owed} is lost"


@pytest.mark.slow
@pytest.mark.parametrize("training", Training, ids=lambda training: training.name.lower())
def test_a_step_that_is_kept_is_one_that_was_trained_and_none_is_lost(training: Training, node: Path) -> None:
    assert not list(faults(training, PlayedGate, node))


class Open(PlayedGate):
    """The optimizer waits for nothing."""

    def open(self) -> None:
        """Let the optimizer begin."""


class Unshut(PlayedGate):
    """Nobody says that collectives will be aborted."""

    def shut(self, within_s: float) -> None:
        """Let all that follows count."""


class Missing(Open, Unshut):
    """No gate, as when the first GPU kept wrong weights."""


class Unasked(PlayedGate):
    """What torch aborts by itself is not asked for."""

    def __init__(self, *given: object, **named: object) -> None:
        super().__init__(*given, **named | {"may_be_aborted": False})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "training", "fault"),
    [
        (Missing, Training.ONE_OPTIMIZER, "and not"),
        (Open, Training.ONE_OPTIMIZER, "is lost"),
        (Unshut, Training.AVERAGED, "and not"),
        (Unasked, Training.AVERAGED, "and not"),
    ],
    ids=lambda case: case.__name__.lower() if isinstance(case, type) else "",
)
def test_the_law_finds_a_gate_that_leaves_something_out(
    kind: type[PlayedGate], training: Training, fault: str, node: Path
) -> None:
    assert any(fault in found for found in faults(training, kind, node))


def test_a_gate_opens_when_the_device_has_passed_all_and_no_group_has_failed() -> None:
    device, failure = Device(), ""
    gate = Gate(device, lambda: failure, may_be_aborted=False)
    gate.open()
    device.is_recording = True
    device.give(bool)
    gate.open()  # what is recorded is not done now
    device.is_recording = False
    gate.note_end()
    assert not gate.has_ended(0.0)
    failure = "the group has failed"
    with pytest.raises(dist.DistBackendError, match=failure):
        gate.open()
    gate.shut(0.0)
    assert not gate.has_ended(None), "a step that was on when collectives were aborted counts"
    with pytest.raises(LeftRoundError):
        gate.open()
    device.go_on()
    gate.note_end()
    assert not gate.has_ended(None), "a step counts that has ended behind an abort"


class Group:
    """What torch's process groups tell of an error, for a name of one of torch's errors."""

    group_name = "4"

    def __init__(self, error: str) -> None:
        self._error = error

    def _get_backend(self, device: torch.device) -> Group:
        assert device.type == "cuda"
        return self

    def get_error(self) -> ErrorType:
        """Return the error."""
        found: ErrorType = getattr(ErrorType, self._error)
        return found


@pytest.mark.usefixtures("group")
def test_a_group_of_nccl_that_has_failed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not failure_of_groups(), "gloo tells of no error"
    groups: dict[object, tuple[str, None]] = {Group("SUCCESS"): ("cpu:gloo,cuda:nccl", None)}
    monkeypatch.setattr(distributed_c10d, "_pg_map", groups)
    assert not failure_of_groups()
    groups[object()] = ("nccl", None)  # a group of a torch that does not tell
    groups[Group("COMM_ERROR")] = ("nccl", None)
    assert "COMM_ERROR for process group 4:" in failure_of_groups()


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")  # of torch's own compiler
def test_an_optimizer_is_seen_where_its_step_is_compiled(script: Script) -> None:
    weights = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(weights.parameters())
    with script.runs({"weights": weights, "optimizer": optimizer}) as (_, kept):
        assert kept._gate is None, "the host waits for its own collectives"
        weights(torch.ones(1, 2)).sum().backward()
        torch.compile(optimizer.step, backend="eager")()
        assert kept._saver.numbers.is_changing
        assert kept._lock.is_in_step
