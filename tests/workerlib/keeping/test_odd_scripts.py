"""What scripts do that nobody thought of: it is kept to the last bit, or refused in words, and training goes on."""

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler, swa_utils
from torch.utils.data import DataLoader, Dataset

from tests.support.environments import environment
from tests.support.keeping import Gone
from tests.support.kept_script import (
    MakeOptimizer,
    Objects,
    Script,
    Stateful,
    do_steps,
    network,
    network_and_optimizer,
    state_of,
    train,
)
from tests.support.late_device import Device
from tests.support.programs import wait_until
from workerlib import Context, section
from workerlib.contract.arena import GENERATIONS
from workerlib.contract.channel_messages import BEFORE_NAMED, Halted, Hello, NotSaved, Saved, Unstepped
from workerlib.keeping import keeper
from workerlib.keeping.gate import Gate
from workerlib.keeping.keeper import StepKeeper, keep
from workerlib.keeping.kept_errors import KeptStateError

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("phase", "said"), [(nullcontext(), [Unstepped(0)]), (section("warm-up", 60.0), [])])
def test_a_rank_that_has_trained_without_a_step_says_so_at_its_end(
    script: Script, phase: AbstractContextManager[None], said: list[Unstepped]
) -> None:
    with script.trains() as (model, optimizer, _), phase:
        train(model, optimizer)
    script.node.await_message(0, NotSaved)
    assert [message for message in script.node.nodes[0].messages if isinstance(message, Unstepped)] == said


class Tied(nn.Module):
    """Two layers with one weight, and what else a module may have."""

    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.nothing = nn.Parameter(torch.empty(0, 3))
        self.turned = nn.Parameter(torch.randn(4, 6).t())
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Use all of it."""
        self.count.add_(1)
        result: torch.Tensor = self.second(self.first(x)) @ self.turned.t() * self.scale + self.nothing.sum()
        return result


def tied() -> Objects:
    model = Tied()
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), fused=True)}


def two_of_each() -> Objects:
    model, critic = network(), network()
    return {
        "model": model,
        "critic": critic,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "never_stepped": torch.optim.Adam(critic.parameters(), foreach=True),
    }


def averaged() -> Objects:
    model = network()
    mean: Any = swa_utils.get_ema_multi_avg_fn(0.9)  # type: ignore[no-untyped-call]  # torch has no types here
    average = swa_utils.AveragedModel(model, multi_avg_fn=mean, use_buffers=True)
    return {"model": model, "average": average, "optimizer": torch.optim.NAdam(model.parameters())}


def compiled() -> Objects:
    model = network()
    return {"model": torch.compile(model, backend="eager"), "optimizer": torch.optim.RAdam(model.parameters())}


def scheduled() -> Objects:
    model = network()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    parts = [
        lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step),
        lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=50, cycle_momentum=False),
    ]
    return {
        "model": model,
        "optimizer": optimizer,
        "chained": lr_scheduler.SequentialLR(optimizer, parts, milestones=[1]),
        "warm": lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3),
        "scaler": torch.amp.GradScaler("cpu"),
    }


OPTIMIZERS: list[MakeOptimizer] = [
    lambda parameters: torch.optim.AdamW(parameters, amsgrad=True),
    lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    getattr(torch.optim, "Adafactor", torch.optim.Adagrad),  # torch 2.4 has none
    torch.optim.Rprop,
    lambda parameters: torch.optim.SGD([{"params": list(parameters), "lr": torch.tensor(0.5)}]),
]


def optimized(make: MakeOptimizer) -> Objects:
    objects = network_and_optimizer(make)
    return {**objects, "chained": lr_scheduler.MultiStepLR(objects["optimizer"], [2, 4], gamma=0.5)}


def odd_tensors() -> Objects:
    torch.manual_seed(9)
    tensors = {
        "half": torch.randn(3).bfloat16(),
        "eighth": torch.randn(7).to(torch.float8_e4m3fn),
        "complex": torch.randn(3, dtype=torch.complex64).conj(),
        "flags": torch.randn(5) > 0,
        "strided": torch.randn(6, 4)[::2, 1:3],
        "empty": torch.empty(0, 2),
        "number": torch.tensor(7),
    }
    return network_and_optimizer(partial(torch.optim.SGD, lr=0.1, momentum=0.9), tensors=tensors)


@pytest.mark.parametrize(
    "make",
    [tied, two_of_each, averaged, compiled, scheduled, odd_tensors, *(partial(optimized, make) for make in OPTIMIZERS)],
)
@pytest.mark.filterwarnings("ignore:The epoch parameter in")  # torch 2.4 warns of its own schedulers
def test_it_comes_back_to_the_last_bit(script: Script, make: Callable[[], Objects]) -> None:
    objects = make()
    with script.runs(objects) as (done, kept):
        assert done == -1
        for step in range(3):
            train(objects["model"], objects["optimizer"])
            if "average" in objects:
                objects["average"].update_parameters(objects["model"])
            for name in objects.keys() & {"chained", "warm"}:
                objects[name].step()
            for tensor in objects.get("tensors", {}).values():
                tensor.copy_(tensor + 1 if tensor.dtype == torch.int64 else tensor.clone())
            kept.step(step)
        script.saved(kept)
        before = state_of(objects)
    fresh = make()
    for tensor in fresh.get("tensors", {}).values():
        tensor.zero_()
    script.check_resumed(fresh, 2, before)


GENERATORS: list[tuple[Callable[[], Any], Callable[[Any], Any]]] = [
    (torch.Generator, lambda dice: torch.randn(2, generator=dice).tolist()),
    (np.random.default_rng, lambda dice: dice.normal()),
    (lambda: np.random.Generator(np.random.MT19937()), lambda dice: dice.integers(9, size=4, dtype=np.uint16).tolist()),
    (np.random.RandomState, lambda dice: dice.normal()),
    (random.Random, lambda dice: dice.gauss(0, 1)),
]


@pytest.mark.parametrize(("make", "draw"), GENERATORS)
def test_a_generator_goes_on_in_place(script: Script, make: Callable[[], Any], draw: Callable[[Any], Any]) -> None:
    dice = make()
    with script.trains(dice=dice) as (model, optimizer, kept):
        do_steps(kept, model, optimizer)
        draw(dice)
        train(model, optimizer)
        kept.step(3)
        script.saved(kept)
    fresh = make()
    with script.runs({"model": model, "optimizer": optimizer, "dice": fresh}) as (done, _):
        assert done == 3
        assert [draw(fresh) for _ in range(9)] == [draw(dice) for _ in range(9)]


def holds_itself() -> Objects:
    state: Objects = {"n": 1}
    state["again"] = [state]
    return state


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: {"x": torch.eye(3).to_sparse()}, r"one\.x is a tensor of the layout torch\.sparse_coo"),
    (lambda: Stateful({"x": [torch.eye(3).to_sparse()]}), r"one\.x\[0\] is a tensor of the layout torch\.sparse_coo"),
    (lambda: [torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)], r"one\.0 is quantized \(torch\.qint8\)"),
    (lambda: nn.Linear(3, 3, device="meta"), r"one\.weight is on the meta device: call keep\(\) once the model has"),
    (lambda: nn.LazyLinear(3), r"one\.weight has no size yet: call keep\(\) after a first forward"),
    (lambda: {"x": torch.zeros(1).expand(5)}, r"one\.x is expanded, so that nothing can be copied back into it"),
    (lambda: nn.Linear, r"one cannot be kept: its state_dict\(\) has failed: TypeError"),
    (random.SystemRandom, r"one draws from the system, and has no state"),
    (lambda: Stateful({"self": [object()]}), r"one\.self\[0\] is a builtins\.object, which cannot be kept"),
    (holds_itself, r"one\.again\.0\.again\..* is within more than 100 dicts and lists, or holds itself, so it cannot"),
    (
        lambda: Stateful(holds_itself()),
        r"one\.again\[0\]\.again.* is within more than 100 dicts and lists, or holds itself, so it cannot",
    ),
    (lambda: {"n": np.longdouble(1)}, r"one\.n is a numpy\.longdouble, which cannot be kept"),
    (lambda: {"n": 1 << 3_000}, r"one\.n is an integer of 3001 bits, and at most 2048 are kept"),
    (
        lambda: {"1": torch.ones(2), 1: torch.zeros(2)},
        r"keep\(\) was given two tensors with the name one\.1: give one of them another name",
    ),
]


@pytest.mark.parametrize(("make", "words"), REFUSED)
@pytest.mark.filterwarnings("ignore:Lazy modules", "ignore:torch.quantize_per_tensor")
def test_it_is_refused_in_words_before_the_first_step(script: Script, make: Callable[[], Any], words: str) -> None:
    with pytest.raises(KeptStateError, match=words), script.runs({"one": make()}):
        pass


def test_what_outgrows_the_room_of_the_small_state_is_kept_at_its_next_step(script: Script) -> None:
    notes = dict[str, Any](seen=[])
    with script.trains(notes=notes) as (model, optimizer, kept):
        for step in range(20):  # sizes are checked at powers of two in any case
            if step == 18:
                notes["seen"] = [*range(2_000)]
            train(model, optimizer)
            kept.step(step)
            wait_until("memory", lambda: not kept._saver.memory.awaited)
        assert script.saved(kept) == 19
    script.round += 1
    assert script.node.resume.step == 19


def test_there_is_room_for_the_names_of_buffers_that_change_after_the_optimizer(script: Script) -> None:
    """Torch's average copies all buffers of its model then."""
    model = nn.Sequential(*(nn.BatchNorm1d(4) for _ in range(400)))
    average = swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with script.runs({"model": model, "average": average, "optimizer": optimizer}) as (_, kept):
        for step in range(3):
            train(model, optimizer)
            average.update_parameters(model)
            kept.step(step)
            wait_until("memory", lambda: not kept._saver.memory.awaited)
        model(torch.randn(8, 4))
        assert kept._saver._small.is_pending


def test_an_error_within_the_optimizer_leaves_no_state(script: Script) -> None:
    with script.trains() as (model, optimizer, kept):
        train(model, optimizer)
        kept.step(0)
        optimizer.register_step_post_hook(lambda *_: 1 / 0)  # type: ignore[arg-type]  # an error is meant
        with suppress(ZeroDivisionError):
            train(model, optimizer)
        kept.close(failed=True)
        assert script.not_saved(kept) == "training has ended within a step"


def test_training_goes_on_while_its_memory_is_prepared_and_its_last_step_is_kept(script: Script) -> None:
    with script.trains() as (model, optimizer, kept):
        script.node.gives.clear()
        do_steps(kept, model, optimizer)
        script.node.gives.set()
        script.saved(kept)
        assert script.node.resume.step == 2


def test_when_training_has_ended_its_last_step_is_kept(script: Script) -> None:
    """Its process may be ended before it has come to its end by itself, and answers nobody then."""
    with script.trains() as (model, optimizer, kept):
        do_steps(kept, model, optimizer)
        script.await_memory(kept)
    assert script.node.choose().step == 2


def note_result(notes: Objects) -> None:
    notes["final"] = torch.ones(3)


def note_loss(notes: Objects) -> None:
    notes["loss"].mul_(0.9)


@pytest.mark.parametrize("note", [note_result, note_loss])
def test_a_script_that_notes_its_results_after_the_last_step_keeps_that_step(
    script: Script, note: Callable[[Objects], None]
) -> None:
    def fresh() -> Objects:
        return network_and_optimizer(notes={"loss": torch.ones(1)})

    objects = fresh()
    with script.runs(objects) as (_, kept):
        do_steps(kept, objects["model"], objects["optimizer"])
        script.await_memory(kept)
        note(objects["notes"])
    assert script.node.choose().step == 2
    before = state_of(objects)
    script.check_resumed(fresh(), 2, before)


def test_tensors_that_do_not_fit_the_values_of_the_last_step_are_not_saved_with_them(script: Script) -> None:
    """Where the saved list is shorter, nothing could put its last tensor back."""
    notes = {"seen": [torch.ones(2)]}
    with script.trains(notes=notes) as (model, optimizer, kept):
        do_steps(kept, model, optimizer)
        script.await_memory(kept)
        notes["seen"].append(torch.ones(2))
    assert isinstance(answer := script.node.await_message(0, NotSaved), NotSaved)
    assert answer.why == "tensors have changed since the last step was done"


def test_a_worker_gives_its_number_on_its_node_where_all_have_local_rank_0(script: Script) -> None:
    _, kept = keep(replace(environment(0, 2, 1, 1), worker=1), {"weights": torch.zeros(3)})
    assert kept is not None
    kept.close(failed=False)
    kept.planned_end.close()
    hello = script.node.await_message(0, Hello)
    assert isinstance(hello, Hello)
    assert hello.local_rank == 1


@pytest.mark.parametrize("failed", [True, False])
def test_the_last_step_is_kept_at_the_end_though_the_coordinator_releases_none(script: Script, failed: bool) -> None:
    """While it is away, or a step is being written, it names no newer steps: the places of earlier ones stay taken."""
    with script.trains() as (model, optimizer, kept):
        for step in range(GENERATIONS):
            train(model, optimizer)
            kept.step(step)
            script.await_memory(kept)
            kept._saver.save(0, last=False)
        arena = script.node.nodes[0].arena
        assert arena is not None
        arena.protect([(1, 0), (1, 1)])
        train(model, optimizer)
        kept.step(GENERATIONS)
        kept.close(failed=failed)
    assert script.node.choose().step == GENERATIONS


@pytest.mark.parametrize(("failed", "newest"), [(False, 1), (True, 0)])
def test_the_save_at_the_end_waits_for_the_gpu_unless_a_collective_may_hang_there(
    script: Script, monkeypatch: pytest.MonkeyPatch, failed: bool, newest: int
) -> None:
    monkeypatch.setattr(keeper, "GPU_WITHIN_S", 0.0)
    looks = itertools.count()

    def look() -> None:
        if next(looks) > 2:
            device.go_on()

    device = Device(look)
    gate = Gate(device, device, has_peers=False)
    with script.trains() as (model, optimizer, kept):
        train(model, optimizer)
        kept.step(0)
        script.await_memory(kept)
        kept._saver.save(0, last=False)
        train(model, optimizer)
        kept.step(1)
        assert gate.open()
        device.give(bool)
        assert gate.record_end()
        kept._saver._generations.gate = gate
        kept.close(failed=failed)
    assert script.node.choose().step == newest


def test_where_training_has_ended_it_stands_still(script: Script) -> None:
    with script.trains() as (model, optimizer, kept):
        do_steps(kept, model, optimizer)
        script.await_memory(kept)
        kept.close(failed=False)
        script.node.halt(0, BEFORE_NAMED)
        assert script.node.await_message(0, Halted) == Halted(2, 1)
        assert [answer.step for answer in script.node.halt(0, 2) if isinstance(answer, Saved)] == [2]


def test_steps_may_be_reported_by_another_thread(script: Script) -> None:
    with script.trains() as (model, optimizer, kept):
        for step in range(3):
            train(model, optimizer)
            reporting = threading.Thread(target=kept.step, args=[step])
            reporting.start()
            reporting.join()
        assert script.saved(kept) == 2


def test_a_second_call_is_refused(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    with script.runs({"model": network()}) as (_, kept):
        monkeypatch.setattr(import_module("workerlib.init"), "_keeper", kept)
        again = Context(environment(0, 2, 1, 1), torch.device("cpu"))
        with pytest.raises(KeptStateError, match=r"keep\(\) was called before: give it all objects at once"):
            again.keep(model=network())


class Noise(Dataset[torch.Tensor]):
    """Random numbers that are drawn in the processes of a data loader."""

    def __len__(self) -> int:
        """Return how many batches of eight there are, times eight."""
        return 32

    def __getitem__(self, index: int) -> torch.Tensor:
        """Draw some."""
        return torch.randn(4) + index


class Loader:
    """Yields the samples of an epoch, and begins to when it is asked for its state, as torchdata's loader does."""

    def __init__(self) -> None:
        self.epoch = 0
        self._skip = 0
        self._begun: list[int] | None = None

    def _begin(self) -> list[int]:
        if self._begun is None:
            dice = torch.Generator().manual_seed(self.epoch)
            self._begun = torch.randperm(16, generator=dice).tolist()
        return self._begun

    def __iter__(self) -> Iterator[int]:
        """Yield samples, from where it was brought back to."""
        samples = self._begin()
        while self._skip < len(samples):
            self._skip += 1
            yield samples[self._skip - 1]
        self._skip, self._begun = 0, None

    def state_dict(self) -> Objects:
        """Return how many samples it has yielded."""
        self._begin()
        return {"yielded": self._skip}

    def load_state_dict(self, state: Objects) -> None:
        """Go on from there."""
        self._skip, self._begun = state["yielded"], None


@pytest.mark.parametrize("told", [-1, 2])
def test_a_loader_is_not_asked_before_its_epoch_is_set(script: Script, told: int) -> None:
    def samples(objects: Objects, kept: StepKeeper, steps: range) -> list[int]:
        objects["loader"].epoch = 1
        seen = []
        for step, sample in zip(steps, objects["loader"], strict=False):
            seen.append(sample)
            train(objects["model"], objects["optimizer"])
            kept.step(step)
        return seen

    whole = Loader()
    whole.epoch = 1
    with script.runs(objects := network_and_optimizer(loader=Loader())) as (_, kept):
        if told >= 0:
            assert samples(objects, kept, range(told + 1)) == list(whole)[: told + 1]
            script.saved(kept)
    with script.runs(objects := network_and_optimizer(loader=Loader())) as (done, kept):
        assert done == told
        assert samples(objects, kept, range(done + 1, 16)) == list(whole)[done + 1 :]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")  # of Python 3.12, at each fork
def test_processes_of_a_data_loader_leave_alone_what_is_kept(script: Script) -> None:
    loader = DataLoader(Noise(), batch_size=8, num_workers=2, multiprocessing_context="fork")

    def epoch(objects: Objects) -> None:
        for batch in loader:
            objects["optimizer"].zero_grad()
            objects["model"](batch).square().mean().backward()
            objects["optimizer"].step()

    momentum = partial(torch.optim.SGD, lr=0.001, momentum=0.9)
    objects = network_and_optimizer(momentum)
    with script.runs(objects) as (_, kept):
        for step in range(2):
            epoch(objects)
            kept.step(step)
        script.saved(kept)
        assert not any(isinstance(message, Gone) for message in script.node.nodes[0].messages)
    epoch(objects)
    undisturbed = state_of(objects)
    objects = network_and_optimizer(momentum)
    with script.runs(objects) as (done, _):
        assert done == 1
        epoch(objects)
        assert state_of(objects) == undisturbed
