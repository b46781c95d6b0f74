"""A device that does later what it is given, as a GPU does, and a training of one rank on it whose peer dies.

What the device is given is done in order, one thing at a time. A collective is not done once the peer is dead, until it
is aborted: then the device goes on with what is behind it, on sums that nobody has made. Nothing here runs by itself.
At each turn of the training, and whenever something waits for the device, the device goes on and the events that are
due are played: so each order of them can be played, in one thread. The keeper and its memory are the real ones.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.support.environments import environment
from workerlib.contract.arena import Arena, ArenaSizes
from workerlib.contract.channel_messages import SaveNow
from workerlib.keeping.gate import DeviceQueue, Gate, TorchGroups
from workerlib.keeping.generations import GenerationWriter, read_generation
from workerlib.keeping.keep_channel import KeepChannel
from workerlib.keeping.keeper import StepKeeper
from workerlib.keeping.kept_errors import KeptStateError, LeftRoundError
from workerlib.keeping.kept_objects import adapt
from workerlib.keeping.pieces import views_of
from workerlib.keeping.restoring import RestorePoint
from workerlib.keeping.small_state import SmallStateWriter

STEPS = 3
"""The steps of a training. The peer takes part in the whole of the first one."""

ABORTED = 1e6
"""What an aborted collective leaves in place of a sum."""

NEVER = 1 << 30

Steps = dict[int, list[float]]
"""The weights after each step."""


class EndedError(BaseException):
    """The node has killed this worker."""


class Event(Enum):
    """What can happen while a worker trains or waits."""

    SAVE = auto()
    """The node asks for the last step."""
    LEAVE = auto()
    """The node asks this process to leave the round, which aborts the collectives."""
    TORCH_ABORTS = auto()
    """torch's watchdog notices the failure, and aborts the collectives."""
    HOST_ABORTS = auto()
    """A call of torch in the training thread aborts the collectives, and raises an error."""
    PEER_ABORTS = auto()
    """A peer aborts its collective, which lets the one here end as if it were done. It does so after the node has asked
    for the last step."""
    SPOILS = auto()
    """An error spoils the device: nothing can be asked of it any more."""


class Training(Enum):
    """How a step changes the weights; the value is the number of its collectives."""

    ONE_OPTIMIZER = (2, "")
    TWO_OPTIMIZERS = (2, "with a backward for each, so that a collective lies between them")
    WITHOUT_HOOKS = (2, "by no optimizer of torch's")
    AVERAGED = (4, "and then ranks average their weights, between the optimizer and ctx.step")
    SUMMED_UP = (2, "only after every second batch, and the round resumes before its first one, which is number 1")

    @property
    def collectives(self) -> int:
        """The number of collectives of a step."""
        return self.value[0]

    @property
    def first(self) -> int:
        """The number of the first step in `ctx.step`."""
        return int(self is Training.SUMMED_UP)

    def last_whole(self, step: int) -> int:
        """Return the last step up to this one that weights belong to; -1 if there is none."""
        return step - step % 2 if self is Training.SUMMED_UP else step


Work = Callable[[], object]


@dataclass
class Device(DeviceQueue, TorchGroups):
    """The device and its process group; `turn` is called whenever somebody looks how far it has come."""

    turn: Callable[[], None]
    dies_at: int = NEVER
    """The number of the collective that the peer takes no part in any more."""
    is_aborted: bool = False
    is_recording: bool = False
    is_spoilt: bool = False
    problem: str = ""
    done: int = 0
    collectives: int = 0
    given: list[tuple[Work, Work | None]] = field(default_factory=list)
    """Each work, and what an aborted collective does in its place; None for what is no collective."""

    def give(self, work: Work, aborted: Work | None = None) -> None:
        """Put work behind all that was given."""
        self.given.append((work, aborted))

    def begun_count(self) -> int:
        """Return how many collectives were given."""
        return sum(aborted is not None for _, aborted in self.given)

    def failure(self) -> str:
        """Return what torch says of the process group."""
        return self.problem

    @property
    def is_stuck(self) -> bool:
        """Whether the device waits for the peer, which is dead."""
        in_collective = self.done < len(self.given) and self.given[self.done][1] is not None
        return in_collective and self.collectives >= self.dies_at and not self.is_aborted

    def go_on(self) -> bool:
        """Do one thing, and return whether there was one to be done."""
        if self.done == len(self.given) or self.is_stuck:
            return False
        work, aborted = self.given[self.done]
        (aborted if aborted is not None and self.collectives >= self.dies_at else work)()
        self.collectives += aborted is not None
        self.done += 1
        return True

    def mark(self) -> Callable[[], bool]:
        """Return whether the device has done all that was given; this raises `RuntimeError` if it is spoilt."""
        end = len(self.given)

        def is_done() -> bool:
            self.turn()
            if self.is_spoilt:
                raise RuntimeError("an illegal memory access was encountered")
            return self.done >= end

        return is_done

    def stopwatch(self) -> Callable[[], float]:
        """Return a function that counts a second for each work that was given since now."""
        begin = len(self.given)
        return lambda: float(len(self.given) - begin)

    @property
    def is_locking_pages(self) -> bool:
        """Whether pages are being locked."""
        return False

    def lock_pages(self, generations: Sequence[memoryview], report: Callable[[str], None]) -> None:
        """Lock nothing: a copy is made at once."""

    def copy(self, targets: list[torch.Tensor], sources: list[torch.Tensor], begins: Sequence[int]) -> None:
        """Copy beside what was given."""
        del begins
        with torch.no_grad():
            for target, source in zip(targets, sources, strict=True):
                target.copy_(source)


class Later(torch.optim.Optimizer):
    """Has the device add the gradient of a weight to it."""

    def __init__(self, weight: nn.Parameter, device: Device) -> None:
        super().__init__([weight], {})
        self._weight, self._device = weight, device

    def step(self, _: Any = None) -> None:  # type: ignore[override]  # no closure is given
        """Give the device the change."""
        change(self._weight, self._device)


def change(weight: nn.Parameter, device: Device) -> None:
    """Have the device add the gradient of a weight to it. torch counts the change at once, as it does for a GPU."""
    with torch.no_grad():
        weight.add_(0)
    device.give(lambda: weight.data.add_(_gradient(weight)))


@dataclass
class Play:
    """A training, the collective in which its peer dies, and what happens when."""

    training: Training
    dies_at: int = NEVER
    is_lazy: bool = False
    """Whether the device does one thing a turn, so that the host gets ahead of it. If not, steps are saved at an
    interval of one as well."""
    events: dict[int, Event] = field(default_factory=dict)
    """The events, by the number of the turn after the first step."""

    def __post_init__(self) -> None:
        """Begin with the same weights always."""
        self.device = Device(self._wait, self.dies_at)
        self.weights = [nn.Parameter(torch.tensor([1.0, 2.0])), nn.Parameter(torch.tensor([3.0, 5.0]))]
        self.optimizers = [Later(weight, self.device) for weight in self.weights]
        self.turns = 0
        self.kept: StepKeeper | None = None
        self.owed = -1
        """The step that has to be kept: the last one, if the weights were whole when the node asked for it; else -1."""
        self._ends: list[int] = []
        """The number of all work up to the end of each step."""
        self._whole = -1
        """The last step that the device had come to the end of before anything was aborted."""
        self._is_played = False

    # The training

    def train(self) -> Iterator[int]:
        """Yield after each step that the device was given."""
        for step in range(self.training.first, self.training.first + STEPS):
            if self.training is Training.TWO_OPTIMIZERS:
                for weight in self.weights:
                    self._step(step, [weight])
            else:
                self._step(step, self.weights)
            if self.training is Training.AVERAGED:
                for weight in self.weights:
                    self._sum(partial(getattr, weight, "data"))
                    self.device.give(partial(weight.data.div_, 2))
                    self._turn()
            self._ends.append(len(self.device.given))
            yield step

    def _step(self, step: int, weights: list[nn.Parameter]) -> None:
        for weight in weights:
            is_summed_up = self.training.last_whole(step) == step > 0 and self.training is Training.SUMMED_UP
            self.device.give(partial(_compute, weight, step, is_summed_up=is_summed_up))
            self._sum(partial(_gradient, weight))
            self._turn()
        for weight, optimizer in zip(self.weights, self.optimizers, strict=True):
            if any(weight is each for each in weights) and self.training.last_whole(step) == step:
                change(weight, self.device) if self.training is Training.WITHOUT_HOOKS else optimizer.step()
                self._turn()

    def _sum(self, tensor: Callable[[], torch.Tensor]) -> None:
        """Sum a tensor over the two ranks, which have the same values."""
        self.device.give(lambda: tensor().mul_(2), lambda: tensor().fill_(ABORTED))

    # The others

    def _wait(self) -> None:
        """Let the others go on while somebody waits for the device. Raises `EndedError` if nothing else can happen."""
        if (self.device.is_stuck or self.device.problem) and set(self.events.values()) <= {Event.HOST_ABORTS}:
            raise EndedError
        self.device.go_on()
        self._play()

    def _turn(self) -> None:
        while self.device.go_on() and not self.is_lazy:
            pass
        if self.events.get(self.turns) is Event.HOST_ABORTS:
            self.events.clear()
            self.device.is_aborted = True
            raise RuntimeError("a collective has failed")
        self._play()

    def _play(self) -> None:
        if self.kept is None or self._is_played:
            return
        self._is_played = True
        if not self.device.is_aborted:
            done = sum(end <= self.device.done for end in self._ends)
            self._whole = self.training.last_whole(self.training.first + done - 1)
        # Where all collectives are before the optimizer, the weights are those of a step while the device is in one.
        is_apart = self.training in (Training.ONE_OPTIMIZER, Training.SUMMED_UP)
        is_whole = is_apart and (self.device.is_stuck or not self.kept._lock.is_in_step)
        match self.events.pop(self.turns, None):
            case Event.SAVE:
                self.owed = self._whole if is_whole and not (self.device.problem or self.device.is_spoilt) else -1
                self.kept._on_message(SaveNow(1), [])
            case Event.LEAVE:
                self.kept.interrupt()
                self.device.is_aborted = True
            case Event.TORCH_ABORTS:
                self.device.problem = "a collective has failed"
                self.device.is_aborted = True
            case Event.PEER_ABORTS:
                self.device.is_aborted = True
            case Event.HOST_ABORTS:  # not while it waits
                self.events[self.turns + 1] = Event.HOST_ABORTS
            case Event.SPOILS:
                self.device.is_spoilt = self.device.is_aborted = True
        self.turns += 1
        self._is_played = False


def _compute(weight: nn.Parameter, step: int, *, is_summed_up: bool) -> None:
    weight.grad = weight.detach() / 2 + step + (_gradient(weight) if is_summed_up else 0)


def _gradient(weight: nn.Parameter) -> torch.Tensor:
    assert weight.grad is not None
    return weight.grad


def undisturbed(training: Training) -> Steps:
    """Return the weights after each step of a training that nothing disturbs, also those that it resumes from."""
    play = Play(training)
    found = {training.first - 1: _values(play.weights)}
    for step in play.train():
        play._turn()
        if training.last_whole(step) == step:
            found[step] = _values(play.weights)
    return found


def kept_steps(play: Play, kind: type[Gate], path: Path) -> Steps:
    """Return the steps that are kept when a play is over; the socket of a node that only listens is at `path`."""
    objects = adapt({str(at): weight for at, weight in enumerate(play.weights)})
    gate = kind(play.device, play.device)
    generations, small = GenerationWriter(objects, 2, play.device, gate), SmallStateWriter(objects)
    worker = environment(0, 2, 1, 1)
    kept = StepKeeper(worker, objects, generations, small, KeepChannel(str(path), worker))
    kept._saver.numbers.resume(play.training.first - 1)
    kept._saver.begin(RestorePoint(0, -1, ()))
    kept._saver.record_comparison(alike=True)
    kept._hooks.before_optimizers(kept._before_optimizer)
    sizes = ArenaSizes.at_least(generations.bytes_needed(0) + 65536, small.bytes_needed(small.first_snapshot({})))
    file = os.memfd_create("kept")
    try:
        os.ftruncate(file, sizes.total)
        arena = Arena.create(file, sizes)
        kept._saver.attach(arena, lent=False)
        kept._saver.interval.steps, kept._saver.role.saves_at_intervals = 1, not play.is_lazy
        with suppress(EndedError, LeftRoundError, KeptStateError):
            _train(play, kept)
        return {
            commit.step: _values(views_of(*read_generation(place, commit)[:2]))
            for place in arena.generations
            if (commit := place.read()) is not None
        }
    finally:
        kept.leave_round()
        os.close(file)


def _train(play: Play, kept: StepKeeper) -> None:
    events, play.events = play.events, {}
    try:
        for step in play.train():
            kept.step(step)
            if play.kept is None:
                play.kept, play.events = kept, events
    except RuntimeError:  # of a collective, or of the device
        kept.close(failed=True)


def _values(tensors: list[Any]) -> list[float]:
    return [value for tensor in tensors for value in tensor.tolist()]


def listener(path: Path) -> socket.socket:
    """Return a socket to which many workers can connect, and which reads nothing."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(str(path))
    listening.listen(4096)
    return listening
