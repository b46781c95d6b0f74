"""Writes the big state of a step into a generation of the arena, with the small state of that step behind it.

A generation is one of the three places for big state in the arena. The writer also knows whether tensors have changed
since the last step: a state that was changed in between belongs to no step, and is not saved.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch import nn

from workerlib.contract.arena import ALIGNMENT, WITH_SMALL, Arena, Commit, Place
from workerlib.contract.manifest import Layout, Piece, lay_out, read_layout
from workerlib.keeping.adapter import Adapter
from workerlib.keeping.gate import DeviceQueue, Gate, queue_of, queue_of_collectives
from workerlib.keeping.kept_containers import KeptContainer
from workerlib.keeping.kept_errors import KeptStateError
from workerlib.keeping.pieces import change_count, is_sharded, local_part, piece_of, views_of
from workerlib.keeping.small_state import copy_tensors
from workerlib.keeping.tensor_digest import digest_of

TOUCH_AFTER_S = 1.0
"""The delay until the pages of new memory are mapped, so that this does not slow down the beginning of a round."""

SAMPLE = 4
"""The approximate number of tensors that are checked for changes outside `optimizer.step`. A few suffice, since
whatever trains changes nearly all of them, and each one costs time at each step."""

LOOKS = 2 * SAMPLE
"""How many frozen parameters are looked at in each later step, in turn, until one has changed: a moving average may
begin after many steps, or move at every tenth."""

HEAD = 4096
"""How many of its first elements are the *head* of a tensor. Where torch has counted no change, `has_trained` compares
the heads of the sample."""


_Version = tuple[weakref.ref[torch.Tensor], int, int]
"""A tensor, how often it had been changed in place, and the address of its data, which `.data = ...` replaces."""


class NotNowError(Exception):
    """No generation was written, and a later save may succeed; the text says why."""


class GenerationWriter:
    """Writes the big states of objects into the generations of an arena.

    It also answers three questions about changes. `has_trained`, asked at each `ctx.step` of a script whose optimizers
    call no hooks: is this a new step, or were gradients only summed up? `has_changed`: is the state no longer that of
    the last step, so that it cannot be saved? `is_trained`: has training changed anything in this round, so that ranks
    can be compared? `record_step` comes after `has_trained`, and once before the first step.

    The thread that reads from nodeclient calls `attach`. Like the training thread, it also calls `has`, `has_changed`
    and `write`. It holds the keeper's lock then, and so does training in `record_step`. Optimizers with hooks wait for
    that lock too. Without hooks, training may change tensors meanwhile, which `has_changed` is there to see.
    """

    def __init__(
        self,
        objects: Mapping[str, Adapter],
        world_size: int,
        queue: DeviceQueue | None = None,
        gate: Gate | None = None,
    ) -> None:
        """Take the objects to write; by default `queue` and `gate` follow from where their tensors are."""
        self._objects = objects
        self._arena: Arena | None = None
        self._size_changes = 0
        """The sum of `Adapter.size_changes` at the last call of `has_changed_size`."""
        self._sample: list[torch.Tensor] = []
        """Some of the tensors, whose changes show those of the state; those that require gradients, if any does."""
        self._versions: list[int] = []
        """How often each tensor of the sample had been changed at the end of the last step, for `has_changed`."""
        self._frozen = _FrozenSample(())
        self._unhooked: list[_Version] = []
        """The versions of what the script changes itself, at the end of the last step, for `has_changed`."""
        self._first_versions: list[int] = []
        """The `_versions` before the first step of the round, for `is_trained`."""
        self._learning: list[_Version] = []
        """All tensors that require gradients, at the last call of `has_trained`, or before the first step."""
        self._head_digest = 0
        """A digest of the heads of the sample, as of the last comparison by `has_trained`; unused once `is_trained`."""
        self._queue = queue_of(tensor for _, tensor in self.tensors()) if queue is None else queue
        """The queue of the GPU that has the state; None if the host has it."""
        collectives = queue_of_collectives(self._queue)
        self.gate = Gate(collectives, has_peers=world_size > 1) if gate is None and collectives is not None else gate
        """Waits for the GPU; None without a GPU."""

    def attach(self, arena: Arena, report_slow: Callable[[str], None]) -> None:
        """Write into this arena from now on; `report_slow` is told why writes from a GPU are slow, if they are."""
        self._arena = arena
        if self._queue is not None:
            self._queue.lock_pages([place.data for place in arena.generations], report_slow)
            return
        touch = threading.Timer(TOUCH_AFTER_S, arena.touch)
        touch.daemon = True
        touch.start()

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """Return all big tensors with their names. Raises `KeptStateError` as `Adapter.big_tensors` does."""
        return [pair for kept in self._objects.values() for pair in kept.big_tensors()]

    def replicas(self) -> list[tuple[str, torch.Tensor]]:
        """Return the big tensors that stay alike on all ranks if they were alike before. Raises as `tensors`."""
        return [pair for kept in self._objects.values() if not kept.differs_by_rank for pair in kept.big_tensors()]

    @property
    def has_unequal_inputs(self) -> bool:
        """Whether ranks may do different numbers of steps."""
        return any(kept.has_unequal_inputs for kept in self._objects.values())

    def bytes_needed(self, small: int) -> int:
        """Return how many bytes a generation needs, with a small state of `small` bytes."""
        return small_offset(lay_out(_pieces_of(self.tensors()))) + small

    @property
    def on_device(self) -> bool:
        """Whether the state is in the memory of a GPU, and is lost if an error spoils this process's context there."""
        return self._queue is not None

    @property
    def is_preparing(self) -> bool:
        """Whether a write takes far longer now than it soon will: pages are being locked, see `page_locking`."""
        return self._queue is not None and self._queue.is_locking_pages

    def stopwatch(self) -> Callable[[], float]:
        """Return a function that returns how long work on the state has taken since now, as `DeviceQueue` has one."""
        if self._queue is not None:
            return self._queue.stopwatch()
        began_at = time.monotonic()
        return lambda: time.monotonic() - began_at

    def record_step(self) -> bool:
        """Record the present state as that of a whole step; return False if the step does not count, see `gate`."""
        if self.gate is not None and not self.gate.record_end():
            return False
        if not self._sample:
            tensors = [tensor for _, tensor in self.tensors()]
            learning = [tensor for tensor in tensors if tensor.requires_grad]
            frozen = [tensor for tensor in tensors if isinstance(tensor, nn.Parameter) and not tensor.requires_grad]
            self._sample = [local_part(tensor) for tensor in _some_of(learning or tensors)]
            self._frozen = _FrozenSample(frozen if learning else ())
            self._head_digest = self._digest_of_heads()
            self._learning = _versions_of(learning)
        else:
            self._frozen.choose()
        self._versions = [*map(change_count, self._sample)]
        self._first_versions = self._first_versions or self._versions
        self.record_unhooked()
        return True

    def record_unhooked(self) -> None:
        """Count what the script has changed itself up to now as part of the last step. Raises as `tensors`.

        When training is over, `StepSaver.accept_last_changes` calls it once more.
        """
        self._unhooked = _versions_of(self._changed_by_script())

    def _changed_by_script(self) -> list[torch.Tensor]:
        containers = (kept for kept in self._objects.values() if isinstance(kept, KeptContainer))
        return [*self._frozen.watched, *(tensor for kept in containers for _, tensor in kept.big_tensors())]

    @property
    def is_trained(self) -> bool:
        """Whether a step has changed the state in this round, by torch's counts of changes of a sample of its tensors.

        Also true if there are no big tensors.
        """
        return not self._sample or self._versions != self._first_versions

    def has_changed(self) -> bool:
        """Whether the state has changed since `record_step`, by what the script changes itself and a sample of all."""
        if self._versions != [*map(change_count, self._sample)]:
            return True
        try:
            return _have_changed(self._changed_by_script(), self._unhooked)
        except RuntimeError:  # training adds a tensor at this moment
            return True

    def has_trained(self) -> bool:
        """Whether training has changed or replaced a tensor that requires gradients since the last call.

        Without such tensors this is always true: no gradients can be summed up. torch counts no writes to `.data`. So
        the bits of the sample are compared too, which waits for a GPU, until torch has counted a change in this round.
        """
        if not self._learning:
            return True
        try:
            learning = [tensor for _, tensor in self.tensors() if tensor.requires_grad]
        except KeptStateError:  # the next save says why
            return True
        before, self._learning = self._learning, _versions_of(learning)
        if _have_changed(learning, before):
            return True
        if self.is_trained:  # torch counts the changes of this script
            return False
        digest, self._head_digest = self._head_digest, self._digest_of_heads()
        return self._head_digest != digest

    def _digest_of_heads(self) -> int:
        return digest_of(("", tensor.flatten()[:HEAD]) for tensor in self._sample)

    def has_changed_size(self) -> bool:
        """Whether there is more or less state than at the last call, as after an optimizer's first step."""
        before, self._size_changes = self._size_changes, sum(kept.size_changes for kept in self._objects.values())
        return self._size_changes != before

    def has(self, wanted: Commit) -> bool:
        """Whether the arena has this rank's state of a step already."""
        places = () if self._arena is None else self._arena.generations
        return any(commit is not None and commit.is_same_part(wanted) for commit in map(Place.read, places))

    def write(
        self,
        commit: Commit,
        small: memoryview | None,
        *,
        stride: int = 1,
        last: bool = False,
        gpu_within_s: float | None = None,
        watch: bool = False,
    ) -> int:
        """Write the present big state; return its length in bytes. Raises `NotNowError`, and `KeptStateError`.

        `commit` says which step it is, and is completed with length, serial and flags. `small` is the small state of
        that step, if it is known. Where there is a place also depends on `stride`, the difference to the step before,
        and on whether this is the `last` save of a round; see `oldest_generation`.
        The GPU has `gpu_within_s` to come to the end of the step; None for as long as it takes.
        With `watch`, nothing is committed if the next step has begun meanwhile, as it may without optimizers' hooks.
        """
        if self._arena is None:
            raise NotNowError("there is no memory yet")
        if self.gate is not None and not self.gate.await_end(gpu_within_s):
            raise NotNowError(f"the GPU did not come to the end of the step within {gpu_within_s:g} s")
        tensors = self.tensors()
        layout = lay_out(_pieces_of(tensors))
        end = small_offset(layout)
        """Where the big state ends, and the small one begins."""
        length = end if small is None else end + len(small)
        if length > self._arena.sizes.generation:
            raise NotNowError(f"the state of {length:,} bytes has outgrown its memory")
        place = self._arena.begin_generation(commit.step, stride, last=last)
        if place is None:
            raise NotNowError("the steps that are in memory are still needed, so there is no place for another one")
        place.data[: len(layout.manifest)] = layout.manifest
        targets, sources = views_of(layout, place.data), [local_part(tensor) for _, tensor in tensors]
        if self._queue is None:
            copy_tensors(targets, sources)
        else:
            self._queue.copy(targets, sources, layout.begins)
        if small is not None:
            place.data[end:length] = small
        if watch and self.has_changed():
            raise NotNowError("tensors have changed while they were copied")
        serial, flags = self._arena.newest_serial() + 1, 0 if small is None else WITH_SMALL
        place.commit(replace(commit, length=length, serial=serial, flags=flags))
        return length


def _pieces_of(tensors: list[tuple[str, torch.Tensor]]) -> tuple[Piece, ...]:
    """Return the pieces of tensors. Raises `KeptStateError`, also if two have one name: only one could come back."""
    names = [name for name, _ in tensors]
    if len(set(names)) < len(names):
        twice = next(name for at, name in enumerate(names) if name in names[:at])
        raise KeptStateError(f"keep() was given two tensors with the name {twice}: give one of them another name")
    return tuple(piece_of(*pair) for pair in tensors)


def read_generation(place: Place, commit: Commit) -> tuple[Layout, memoryview, memoryview | None]:
    """Return layout and data of a generation, and the data of its small state if it has one. Raises `ManifestError`."""
    data = place.data[: commit.length]
    layout = read_layout(data)
    return layout, data, data[small_offset(layout) :] if commit.has_small else None


def small_offset(layout: Layout) -> int:
    """Return where the small state begins in the data of a generation."""
    return -(-layout.end // ALIGNMENT) * ALIGNMENT


class _FrozenSample:
    """Some of the parameters that require no gradients, if others do.

    Only the script itself may change them, as where one encoder follows another one by a moving average.
    """

    def __init__(self, frozen: Sequence[torch.Tensor]) -> None:
        """Begin with all of these parameters, before the first step."""
        self.watched = frozen
        """All of them in the first step, then some of those that it has changed, once a change of any is seen."""
        self._still = deque(_versions_of(frozen))
        """All of them before the first step; empty once a change of any is seen."""

    def choose(self) -> None:
        """Choose those to be watched in the next step, at the end of a step."""
        if not self._still:
            return
        looked = [*islice(self._still, max(LOOKS, len(self.watched)))]  # after the first step these are all
        self._still.rotate(-len(looked))
        moved = [tensor for before in looked if (tensor := before[0]()) is not None and _is_changed(tensor, before)]
        if moved:
            self._still.clear()
        self.watched = _some_of(moved or self.watched)


def _some_of(tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    return tensors[:: max(1, len(tensors) // SAMPLE)]


def _versions_of(tensors: Sequence[torch.Tensor]) -> list[_Version]:
    return [(weakref.ref(tensor), *_version_of(tensor)) for tensor in tensors]


def _version_of(tensor: Any) -> tuple[int, int]:
    local = tensor._local_tensor if is_sharded(tensor) else tensor  # noqa: SLF001 - as in `pieces`
    return change_count(local), local.data_ptr() if local.layout is torch.strided else 0


def _have_changed(tensors: Sequence[torch.Tensor], before: Sequence[_Version]) -> bool:
    return len(tensors) != len(before) or any(map(_is_changed, tensors, before))


def _is_changed(tensor: torch.Tensor, before: _Version) -> bool:
    return before[0]() is not tensor or before[1:] != _version_of(tensor)
