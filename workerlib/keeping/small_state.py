"""Writes and reads the small state of a step: buffers, random state and values, of which each rank has its own.

When a rank dies, others mostly have the same big state, and save it then. No other rank has its small state. So each
rank writes that at the end of each step, into the small places of the arena in turn.

A rank that dies may have contributed to a step that the others complete without it. So the small state is also written
within the step, as *pending*: after each forward, since the backward contributes, and before the optimizer's step. Its
buffers and random state are those of the end of the step already. It leaves out values that may still change, such as a
count after the backward, or a scheduler's step number. It names the few buffers that change late, such as the count of
averages of torch's `AveragedModel`. A rank that resumes from its pending state takes these values and buffers from
another rank's small state at the end of that step (`restoring.restore_objects`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from operator import attrgetter
from typing import Any

import torch

from workerlib.contract.arena import Arena, Commit
from workerlib.contract.manifest import Layout, Piece, lay_out, read_layout
from workerlib.keeping.adapter import Adapter, BufferPlace
from workerlib.keeping.kept_containers import KeptContainer
from workerlib.keeping.kept_errors import KeptStateError
from workerlib.keeping.pieces import change_count, piece_of, views_of
from workerlib.keeping.random_state import RandomState

RANDOM = "random/"
"""The prefix of the names of random states among the tensors."""

REST_SLACK_BYTES = 4096
"""The slack for values as JSON, beyond twice their present size: the first ones are often a few bytes."""

_SEPARATORS = (",", ":")
"""JSON without spaces."""

_KIND = attrgetter("shape", "dtype")


@dataclass(frozen=True, slots=True)
class SmallState:
    """A small state read from a place."""

    buffers: Mapping[str, torch.Tensor]
    random_tensors: dict[str, torch.Tensor]
    """The random states that are tensors, by the names of their generators."""
    values: Mapping[str, Any]
    random: dict[str, Any]
    """The part of the random state that is no tensor."""
    late_buffers: list[str]
    """The buffers of a pending state that the step may still change."""


def read_small(data: memoryview) -> SmallState:
    """Return the small state in the data of a place. Raises `KeptStateError` and `ManifestError`."""
    layout = read_layout(data)
    tensors = dict(zip((piece.name for piece in layout.pieces), views_of(layout, data), strict=True))
    random = {name.removeprefix(RANDOM): tensors.pop(name) for name in [*tensors] if name.startswith(RANDOM)}
    try:
        rest = json.loads(bytes(data[layout.end :]))
        return SmallState(tensors, random, dict(rest["values"]), dict(rest["random"]), list(rest.get("late", ())))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise KeptStateError(f"kept values cannot be read: {error}") from None


@dataclass(frozen=True, slots=True)
class SmallSnapshot:
    """The small state of this process at one moment."""

    buffers: Mapping[str, torch.Tensor]
    """The live buffers by name, which training goes on to change."""
    random: Mapping[str, bytes]
    """The random states of a fixed size, by the names of their generators."""
    rest: bytes
    """Values, and the part of the random state without a fixed size, as JSON."""

    def cloned(self) -> SmallSnapshot:
        """Return the same snapshot with buffers that training does not change."""
        return replace(self, buffers={name: buffer.detach().clone() for name, buffer in self.buffers.items()})


class _Changes(IntEnum):
    """The latest point in a step at which the values of an object have changed, in any step so far.

    A pending state that is written before that point leaves them out, since they may still change. Values that have not
    changed in a step yet are left out of all pending states, since it is not known when they will.
    """

    UNKNOWN = 0
    """They have not changed in a step yet."""
    BEFORE_FORWARD = 1
    """They are final after the last forward, as those of a data loader that yields the batch before it."""
    BEFORE_OPTIMIZER = 2
    """They are final when the optimizer's step begins, as a count of batches after `backward`."""
    LATE = 3
    """They change after that, as those of a scheduler do."""


@dataclass(slots=True)
class _ValueHistory:
    """Learns when in a step the values of one object change."""

    changes: _Changes
    at_forward: str = ""
    """The values as JSON after the last forward in the present step; empty if they were not read."""
    at_optimizer: str = ""
    """The values as JSON when the first optimizer's step after that forward began; empty if they were not read."""
    last_step: str = ""
    """The values at the end of the last step as JSON."""
    value: Any = None
    """The values when they were last read."""
    text: str = "null"
    """`value` as JSON."""

    def text_of(self, value: Any) -> str:
        """Return values as JSON. Unchanged values are the same object as before."""
        if value is not self.value:
            self.value, self.text = value, json.dumps(value, separators=_SEPARATORS)
        return self.text

    def read(self, value: Any, *, at_optimizer: bool) -> str:
        """Record values that were read within a step, after a forward or `at_optimizer`; return them as JSON."""
        text = self.text_of(value)
        if at_optimizer:
            self.at_optimizer = self.at_optimizer or text
        else:
            self.at_forward, self.at_optimizer = text, ""
        return text

    def end_step(self, text: str) -> None:
        """Compare the values at the end of a step with earlier ones."""
        found = _Changes.UNKNOWN
        if self.at_optimizer and text != self.at_optimizer:
            found = _Changes.LATE
        elif self.at_forward and text != self.at_forward:
            found = _Changes.BEFORE_OPTIMIZER
        elif (self.at_forward or self.at_optimizer) and text != self.last_step:
            # They have changed in this step, before they were first read.
            found = _Changes.BEFORE_FORWARD if self.at_forward else _Changes.BEFORE_OPTIMIZER
        self.changes = max(self.changes, found)
        self.at_forward, self.at_optimizer, self.last_step = "", "", text


class _Buffers:
    """Finds the present buffers, and learns which of them change late, after the pending state of a step was read."""

    def __init__(self, places: Sequence[BufferPlace]) -> None:
        self._places = places
        self._pending: dict[str, tuple[torch.Tensor, int]] = {}
        """The buffers and their counts of changes when the pending state of the present step was last read."""
        self.late: set[str] = set()
        """The names of buffers that changed after that read, in any step so far."""

    def present(self) -> dict[str, torch.Tensor]:
        """Return the present buffers by name: a module may make or remove one during training."""
        found = ((name, mapping.get(key)) for name, mapping, key in self._places)
        return {name: buffer for name, buffer in found if buffer is not None}

    def record_pending(self, present: Mapping[str, torch.Tensor]) -> None:
        """Record that a pending state has the `present` buffers."""
        self._pending = {name: (buffer, change_count(buffer)) for name, buffer in present.items()}

    def end_step(self, present: Mapping[str, torch.Tensor]) -> None:
        """Compare the buffers that are `present` at the end of a step with those of its pending state."""
        before, self._pending = self._pending, {}
        for name, buffer in present.items() if before else ():
            was, changes = before.get(name, (None, 0))
            if was is not buffer or changes != change_count(buffer):
                self.late.add(name)


class SmallStateWriter:
    """Makes snapshots of the small state of this process, and writes them into an arena once there is one.

    Before the first step, `first_snapshot` and `bytes_needed` tell how much memory to request from nodeclient. When the
    arena comes, another thread calls `attach`, and writes the snapshot that waited for it, a `cloned` one. In a step,
    training makes and writes pending snapshots, and at its end a `snapshot`. If that does not fit, a larger arena is
    requested in the same way.
    """

    def __init__(self, objects: Mapping[str, Adapter]) -> None:
        self._objects = objects
        self._buffers = _Buffers([place for kept in objects.values() for place in kept.buffer_places()])
        self._histories = {
            name: _ValueHistory(_Changes.LATE if kept.changes_late else _Changes.UNKNOWN)
            for name, kept in objects.items()
        }
        self._random = RandomState()
        self.lock = threading.RLock()
        """Held while a small state is written. `StepSaver.attach` holds it too, from `attach` here to its `write`."""
        self._arena: Arena | None = None
        self._serial = 0
        self._kinds: object = None
        """The names, sizes and types of the tensors for which places are laid out, to notice other ones."""
        self._layout = Layout((), (), b"", 0)
        self._views: dict[int, list[torch.Tensor]] = {}
        """The buffers in each place that has the manifest of the present layout, by the place's identity."""
        self._pending: tuple[Commit, SmallSnapshot] | None = None
        """The snapshot that was written last, if it is a pending one."""

    @property
    def on_device(self) -> bool:
        """Whether some buffers are in the memory of a GPU, so that a copy of them waits for the GPU."""
        return any(buffer.is_cuda for buffer in self._buffers.present().values())

    def attach(self, arena: Arena) -> None:
        """Write into this arena from now on."""
        # Serials go on from those in this arena and in the one that it replaces, whose states are older.
        self._serial = max(self._serial, arena.newest_serial())
        self._arena = arena
        self._kinds = self._pending = None  # so that `_fits` lays out the new places

    def first_snapshot(self, restored: Mapping[str, Any]) -> SmallSnapshot:
        """Return the small state before the first step of the round; `restored` has the restored values by name.

        An object that must not be read yet (`Adapter.iterates_when_read`) has only its restored values. All others are
        read, even if there are restored ones: so an object that cannot be kept is noticed.

        Raises `KeptStateError` for values that cannot be kept.
        """
        values = {name: None if kept.iterates_when_read else kept.values() for name, kept in self._objects.items()}
        return self._end_step(values | {name: restored[name] for name in values if name in restored})

    def snapshot(self) -> SmallSnapshot:
        """Return the small state at the end of a step. Raises `KeptStateError` as `first_snapshot` does."""
        return self._end_step({name: kept.values() for name, kept in self._objects.items()})

    def _end_step(self, values: Mapping[str, Any]) -> SmallSnapshot:
        texts = []
        for name, value in values.items():
            history = self._histories[name]
            text = history.text_of(value)
            history.end_step(text)
            if value is not None:
                texts.append(f"{json.dumps(name)}:{text}")
        buffers = self._buffers.present()
        self._buffers.end_step(buffers)
        return self._snapshot_with(buffers, texts)

    def pending_snapshot(self, *, at_optimizer: bool) -> SmallSnapshot:
        """Return the small state within a step, with only those values that the step will not change any more.

        It is read after a forward, or `at_optimizer`: as an optimizer's step begins.
        """
        texts = []
        for name, history in self._histories.items():
            if history.changes <= (_Changes.BEFORE_OPTIMIZER if at_optimizer else _Changes.BEFORE_FORWARD):
                value = self._objects[name].values()  # also if they have not changed yet, to learn when they do
                text = history.read(value, at_optimizer=at_optimizer)
                if history.changes is not _Changes.UNKNOWN and value is not None:
                    texts.append(f"{json.dumps(name)}:{text}")
        buffers = self._buffers.present()
        self._buffers.record_pending(buffers)
        return self._snapshot_with(buffers, texts, sorted(self._buffers.late))

    def has_last_contents(self) -> bool:
        """Whether dicts and lists hold the same as at the end of the last step; tensors are not compared.

        Raises `KeptStateError` as `first_snapshot` does.
        """
        containers = {name: kept for name, kept in self._objects.items() if isinstance(kept, KeptContainer)}
        texts = {name: self._histories[name].text_of(kept.values()) for name, kept in containers.items()}
        return all(text == self._histories[name].last_step for name, text in texts.items())

    def bytes_needed(self, snapshot: SmallSnapshot) -> int:
        """Return how many bytes a place needs for a snapshot, with room for values that become longer.

        There is also room for the names of all its buffers, in case a pending state names them as late.
        """
        names = len(json.dumps([*snapshot.buffers], separators=_SEPARATORS))
        return lay_out(self._pieces_of(snapshot)).end + 2 * len(snapshot.rest) + names + REST_SLACK_BYTES

    def write(self, snapshot: SmallSnapshot, commit: Commit) -> bool:
        """Write a snapshot, and complete `commit` with its length and serial; return False if no place has room for it.

        No place has room before there is an arena, or while each place has a state that is needed.

        A pending snapshot that equals the one before in this step is not written again, unless it has buffers: torch's
        batch norm changes them without a trace.
        """
        with self.lock:
            if self._arena is None:
                return False
            if not snapshot.buffers and self._pending == (commit, snapshot):
                return True
            if not self._fits(snapshot, len(self._arena.smalls[0].data)):
                return False
            place = self._arena.begin_small()
            if place is None:
                return False
            layout, data = self._layout, place.data
            views = self._views.get(id(place))
            if views is None:
                data[: len(layout.manifest)] = layout.manifest
                views = self._views[id(place)] = views_of(layout, data)[: len(snapshot.buffers)]
            copy_tensors(views, [*snapshot.buffers.values()])
            for begin, raw in zip(layout.begins[len(views) :], snapshot.random.values(), strict=True):
                data[begin : begin + len(raw)] = raw
            end = layout.end + len(snapshot.rest)
            data[layout.end : end] = snapshot.rest
            self._serial += 1
            place.commit(replace(commit, length=end, serial=self._serial))
            self._pending = (commit, snapshot) if commit.pending else None
            return True

    @property
    def is_pending(self) -> bool:
        """Whether a pending snapshot of the current step is written."""
        return self._pending is not None

    def find(self, wanted: Commit) -> memoryview | None:
        """Return the data of the small state at the end of a step; None if the arena does not have it."""
        for place in self._arena.smalls if self._arena is not None else ():
            commit = place.read()
            if commit is not None and not commit.pending and commit.is_same_part(wanted):
                return place.data[: commit.length]
        return None

    def _fits(self, snapshot: SmallSnapshot, room: int) -> bool:
        """Whether a snapshot fits into `room` bytes; if it has other tensors than before, lay out the places anew."""
        random = snapshot.random
        kinds = ([*snapshot.buffers, *random], [*map(_KIND, snapshot.buffers.values())], [*map(len, random.values())])
        if kinds != self._kinds:
            layout = lay_out(self._pieces_of(snapshot))
            if layout.end > room:
                return False
            self._layout, self._kinds, self._views = layout, kinds, {}
        return self._layout.end + len(snapshot.rest) <= room

    def _pieces_of(self, snapshot: SmallSnapshot) -> tuple[Piece, ...]:
        buffers = (piece_of(name, buffer) for name, buffer in snapshot.buffers.items())
        states = (_piece_of_random(name, len(raw)) for name, raw in snapshot.random.items())
        return (*buffers, *states)

    def _snapshot_with(
        self, buffers: Mapping[str, torch.Tensor], texts: Iterable[str], late_buffers: Sequence[str] = ()
    ) -> SmallSnapshot:
        """Return a snapshot with these buffers, and the values of `texts`, each of them a key and a value in JSON."""
        random = self._random.read()
        spare_normals = json.dumps(self._random.spare_normals(), separators=_SEPARATORS)
        late = json.dumps(late_buffers, separators=_SEPARATORS)
        rest = f'{{"values":{{{",".join(texts)}}},"random":{spare_normals},"late":{late}}}'
        return SmallSnapshot(buffers, random, rest.encode())


def _piece_of_random(name: str, length: int) -> Piece:
    return Piece(f"{RANDOM}{name}", "uint8", (length,), (0,), (length,), length)


def copy_tensors(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Copy tensors into others, all of them at once and without the interpreter's lock."""
    if targets:
        with torch.no_grad():
            torch._foreach_copy_(targets, sources)
