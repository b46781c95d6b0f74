"""The law of a device that is behind the host: a step that is kept equals that of an undisturbed training, bit by bit.

It is played over the orders of the peer's death, of what the device is given, of saves and of aborts. Each gate that
leaves out one thing breaks it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed import distributed_c10d

from tests.support.kept_script import Script
from tests.support.late_device import STEPS, Device, Event, Play, Training, kept_steps, listener, undisturbed
from tests.support.programs import TIMEOUT_S
from tests.support.torch_names import skip_without
from workerlib.keeping import generations, keeper
from workerlib.keeping.gate import Gate, TorchGroups

pytestmark = pytest.mark.slow

ORDERS = (
    (Event.SAVE, Event.LEAVE),
    (Event.LEAVE, Event.SAVE),
    (Event.TORCH_ABORTS, Event.SAVE),
    (Event.HOST_ABORTS, Event.SAVE),
    (Event.SAVE, Event.PEER_ABORTS),
    (Event.SPOILS, Event.SAVE),
)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the path of a node's socket. Nothing waits: what comes too late is an order of events like others."""
    for name in ("WAIT_S", "STAND_STILL_S", "GPU_WITHIN_S"):
        monkeypatch.setattr(keeper, name, 0.0)
    monkeypatch.setattr(generations, "TOUCH_AFTER_S", 0.0)
    with listener(tmp_path / "node"):
        yield tmp_path / "node"


def faults(training: Training, kind: type[Gate], node: Path, gap: int = 4) -> Iterator[str]:
    """Play all orders of two events that are `gap` turns apart, and yield what is wrong in each of them."""
    expected = undisturbed(training)
    deaths = range(training.collectives, training.collectives * STEPS)
    for dies_at, is_lazy in product(deaths, (False, True)):
        calm = Play(training, dies_at, is_lazy)
        kept_steps(calm, kind, node)
        for first, order in product(range(calm.turns + 1), ORDERS):  # then it waits for good, or is over
            events = {first: order[0], first + gap: order[1]}
            play = Play(training, dies_at, is_lazy, dict(events))
            kept = kept_steps(play, kind, node)
            what = f"collective {dies_at}, {is_lazy=}, {events}"
            for step in kept:
                if kept[step] != expected.get(step):
                    yield f"{what}: step {step} is {kept[step]} and not {expected.get(step)}"
            if play.owed >= 0 and play.owed not in kept:
                yield f"{what}: step {play.owed} is lost"


@pytest.mark.parametrize("gap", [pytest.param(1, marks=pytest.mark.long), 4])
@pytest.mark.parametrize("training", Training, ids=lambda training: training.name.lower())
def test_a_step_that_is_kept_is_one_that_was_trained_and_none_is_lost(training: Training, gap: int, node: Path) -> None:
    assert not list(faults(training, Gate, node, gap))


class Open(Gate):
    """The optimizer waits for nothing."""

    def open(self) -> bool:
        """Let the optimizer begin."""
        return True


class Missing(Open):
    """No gate, as when the first GPU kept wrong weights."""

    def record_end(self) -> bool:
        """Let each step count."""
        self._step_is_done = self._queue.mark()
        return True


class Early(Gate):
    """A step counts although collectives follow the optimizer."""

    def record_end(self) -> bool:
        """Let each step count that has passed the gate."""
        self._step_is_done = self._queue.mark()
        return True


class Unshut(Gate):
    """A gate that stays open when the round has broken."""

    def shut(self) -> None:
        """Let all that follows count."""


class Deaf(Device):
    """Process groups of which torch tells no failure."""

    def failure(self) -> str:
        """Return nothing."""
        return ""


class Unasked(Gate):
    """Nobody asks torch whether a group has failed."""

    def __init__(self, queue: Device, groups: Device) -> None:
        super().__init__(queue, Deaf(groups.turn, given=groups.given))


@pytest.mark.parametrize(
    ("kind", "training", "fault"),
    [
        (Missing, Training.ONE_OPTIMIZER, "and not"),
        (Open, Training.ONE_OPTIMIZER, "is lost"),
        (Early, Training.AVERAGED, "and not"),
        (Unshut, Training.AVERAGED, "and not"),
        (Unasked, Training.ONE_OPTIMIZER, "and not"),
    ],
    ids=lambda case: case.__name__.lower() if isinstance(case, type) else "",
)
def test_the_law_finds_a_gate_that_leaves_something_out(
    kind: type[Gate], training: Training, fault: str, node: Path
) -> None:
    assert any(fault in found for found in faults(training, kind, node))


def test_a_gate_is_passed_when_the_device_is_through_and_no_group_has_failed(node: Path) -> None:
    del node
    device = Device(lambda: None)
    gate = Gate(device, device)
    assert gate.open()
    device.is_recording = True
    device.give(bool)
    assert gate.open(), "what is recorded is not done now"
    assert gate.record_end()
    assert not gate.await_end(0.0)
    device.is_recording = False
    gate.shut()
    assert not gate.open()
    assert not gate.record_end(), "a step counts that no gate was opened for"
    device.go_on()
    assert gate.await_end(0.0)
    assert Gate(device, device, has_peers=False).open()


ALONE = """
import sys
from pathlib import Path
from tests.support import late_device
from workerlib.keeping import gate

gate.CHECK_S = 0.0
play = late_device.Play(late_device.Training.ONE_OPTIMIZER, 2, False, {4: late_device.Event.TORCH_ABORTS, 99: None})
late_device.kept_steps(play, gate.Gate, Path(sys.argv[1]))
"""


def test_a_worker_whose_group_has_failed_ends_by_itself_if_nobody_else_notices(node: Path) -> None:
    command = (sys.executable, "-W", "ignore", "-c", ALONE, str(node))
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (ended.returncode, ended.stderr) == (1, "workerlib: a collective has failed\n")


class Group:
    """What torch's process groups tell of an error, for a name of one of torch's errors."""

    group_name = "4"

    def __init__(self, error: str) -> None:
        self._error = error

    def _get_backend(self, device: torch.device) -> Group:
        assert device.type == "cuda"
        return self

    def get_error(self) -> object:
        """Return the error."""
        return getattr(torch._C._distributed_c10d.ErrorType, self._error)


@pytest.mark.usefixtures("group")
def test_a_group_of_nccl_that_has_failed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without("torch._C._distributed_c10d:ErrorType")
    assert not TorchGroups().failure(), "gloo tells of no error"
    groups: dict[object, tuple[str, None]] = {Group("SUCCESS"): ("cpu:gloo,cuda:nccl", None)}
    monkeypatch.setattr(distributed_c10d, "_pg_map", groups)
    assert not TorchGroups().failure()
    groups[object()] = ("nccl", None)  # a group of a torch that does not tell
    groups[Group("COMM_ERROR")] = ("nccl", None)
    assert "COMM_ERROR for process group 4:" in TorchGroups().failure()


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
