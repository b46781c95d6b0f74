"""The small state of each step: state that forward changes without the optimizer, and that each rank has for itself.

It is written to a ring of places. A rank that dies may have contributed to a step that the others complete without it.
So the small state is also written within the step, as *pending*: buffers and random state are then those of the step.
Values such as a scheduler's step number may still change. Whether an object's values do is learned from a step in which
they are the same within the step and at its end, and differ from those of the step before.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import torch

from workerlib.contract.arena import Arena, Commit
from workerlib.contract.manifest import Layout, Piece, lay_out, read_layout
from workerlib.keeping.adapter import BufferPlace, KeptObject
from workerlib.keeping.kept_errors import KeptStateError
from workerlib.keeping.pieces import piece_of, views_of
from workerlib.keeping.random_state import RandomState

RANDOM = "random/"
"""The prefix of the names of random states among the tensors."""

_SEPARATORS = (",", ":")

_KIND = attrgetter("shape", "dtype")


@dataclass(frozen=True, slots=True)
class SmallState:
    """The small state that a place holds."""

    tensors: Mapping[str, torch.Tensor]
    values: Mapping[str, Any]
    random: Mapping[str, Any]
    """The part of the random state that is no tensor."""

    @property
    def buffers(self) -> dict[str, torch.Tensor]:
        """The tensors without the random state."""
        return {name: tensor for name, tensor in self.tensors.items() if not name.startswith(RANDOM)}

    @property
    def random_tensors(self) -> dict[str, torch.Tensor]:
        """The random states that are tensors."""
        return {name.removeprefix(RANDOM): tensor for name, tensor in self.tensors.items() if name.startswith(RANDOM)}


def read_small(data: memoryview) -> SmallState:
    """Return the small state in the data of a place. Raises `KeptStateError` and `ManifestError`."""
    layout = read_layout(data)
    tensors = dict(zip((piece.name for piece in layout.pieces), views_of(layout, data), strict=True))
    try:
        rest = json.loads(bytes(data[layout.end :]))
        return SmallState(tensors, dict(rest["values"]), dict(rest["random"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise KeptStateError(f"kept values cannot be read: {error}") from None


@dataclass(frozen=True, slots=True)
class Taken:
    """The small state of this process at one moment."""

    buffers: Mapping[str, torch.Tensor]
    """They change with training."""
    random: Mapping[str, bytes]
    rest: bytes
    """Values, and the part of the random state without a fixed size, as JSON."""

    def kept(self) -> Taken:
        """Return the same in memory of its own."""
        return replace(self, buffers={name: buffer.detach().clone() for name, buffer in self.buffers.items()})


@dataclass(slots=True)
class _Habit:
    """Whether and when the values of an object change."""

    known_late: bool
    key: str
    """Its name as JSON."""
    settled: bool = False
    pending: str = ""
    """Its values within the present step."""
    done: str = ""
    """Its values at the end of the last step."""
    value: Any = None
    """Its values when they were last read."""
    text: str = "null"
    """The same as JSON."""

    def text_of(self, value: Any) -> str:
        """Return values as JSON. They are the very object of before if nothing has changed."""
        if value is not self.value:
            self.value, self.text = value, json.dumps(value, separators=_SEPARATORS)
        return self.text

    def learn(self, present: str) -> None:
        """Compare the values at the end of a step with earlier ones."""
        if self.pending:
            self.known_late |= present != self.pending
            self.settled = not self.known_late and (self.settled or present != self.done)
        self.pending, self.done = "", present


class SmallStates:
    """Takes the small state of this process, and writes it into an arena once there is one."""

    def __init__(self, objects: Mapping[str, KeptObject]) -> None:
        self._objects = objects
        self._buffer_places: list[BufferPlace] = [place for kept in objects.values() for place in kept.buffers()]
        self._habits = {name: _Habit(kept.late, json.dumps(name)) for name, kept in objects.items()}
        self._random = RandomState()
        self.lock = threading.RLock()
        """Held while a small state is written."""
        self._arena: Arena | None = None
        self._serial = 0
        self._plain: tuple[Any, str] = (None, "")
        """The part of the random state without a fixed size, and the same as JSON."""
        self._kinds: object = None
        """The sizes and types for which places are laid out."""
        self._layout = Layout((), (), b"", 0)
        self._views: dict[int, list[torch.Tensor]] = {}
        """The buffers in each place that has the manifest of the present layout, by its identity."""
        self._pending: tuple[Commit, Taken] | None = None
        """The small state that was written last, if it was taken within a step."""

    @property
    def on_device(self) -> bool:
        """Whether some buffers are in the memory of a GPU, so that taking the state waits for the GPU."""
        return any(buffer.is_cuda for buffer in self._buffers().values())

    def attach(self, arena: Arena) -> None:
        """Write into this arena from now on."""
        # States in an arena that this one replaces are older, and need lower serials.
        self._serial = max(self._serial, arena.newest_serial())
        self._arena = arena
        self._kinds = self._pending = None

    def take_first(self, restored: Mapping[str, Any]) -> Taken:
        """Return the small state before the first step of the round; `restored` has values by name, if there are any.

        Raises `KeptStateError` for values that cannot be kept.
        """
        values = {name: None if kept.iterates else kept.values() for name, kept in self._objects.items()}
        return self._take(values | {name: restored[name] for name in values if name in restored})

    def take(self) -> Taken:
        """Return the small state at the end of a step."""
        return self._take({name: kept.values() for name, kept in self._objects.items()})

    def _take(self, values: Mapping[str, Any]) -> Taken:
        texts = []
        for name, value in values.items():
            habit = self._habits[name]
            text = habit.text_of(value)
            habit.learn(text)
            if value is not None:
                texts.append(f"{habit.key}:{text}")
        return self._taken(texts)

    def take_pending(self) -> Taken:
        """Return the small state within a step, with those values only that will not change any more in the step."""
        texts = []
        for name, habit in self._habits.items():
            if not habit.known_late:
                value = self._objects[name].values()
                habit.pending = habit.text_of(value)
                if habit.settled and value is not None:
                    texts.append(f"{habit.key}:{habit.pending}")
        return self._taken(texts)

    def bytes_needed(self, taken: Taken) -> int:
        """Return how many bytes a place needs for a small state, with room for values that become longer."""
        return lay_out(self._pieces_of(taken)).end + 2 * len(taken.rest) + 4096

    def write(self, taken: Taken, commit: Commit) -> bool:
        """Write a small state; the length and serial of `commit` are filled in. Return False if it does not fit.

        A state within a step that is equal to the last one of the step is not written again. With buffers that is not
        known: torch's batch norm changes them without a trace.
        """
        with self.lock:
            if self._arena is None or (not taken.buffers and self._pending == (commit, taken)):
                return self._arena is not None
            if not self._fits(taken):
                return False
            place = self._arena.begin_small()
            if place is None:
                return False
            layout, data = self._layout, place.data
            views = self._views.get(id(place))
            if views is None:
                data[: len(layout.manifest)] = layout.manifest
                views = self._views[id(place)] = views_of(layout, data)[: len(taken.buffers)]
            copy(views, [*taken.buffers.values()])
            for begin, raw in zip(layout.begins[len(views) :], taken.random.values(), strict=True):
                data[begin : begin + len(raw)] = raw
            end = layout.end + len(taken.rest)
            data[layout.end : end] = taken.rest
            self._serial += 1
            place.commit(commit.of(end, self._serial))
            self._pending = (commit, taken) if commit.pending else None
            return True

    @property
    def is_pending(self) -> bool:
        """Whether a small state of the current step is written."""
        return self._pending is not None

    def find(self, wanted: Commit) -> memoryview | None:
        """Return the data of the small state of a step that is done; None if it is not there."""
        for place in self._arena.smalls if self._arena is not None else ():
            commit = place.read()
            if commit is not None and not commit.pending and commit.is_same_part(wanted):
                return place.data[: commit.length]
        return None

    def _fits(self, taken: Taken) -> bool:
        """Whether the state fits a place; if there are other tensors than before, the places get a new layout."""
        assert self._arena is not None  # noqa: S101 - the caller has checked
        room = len(self._arena.smalls[0].data)
        random = taken.random
        kinds = ([*taken.buffers, *random], [*map(_KIND, taken.buffers.values())], [*map(len, random.values())])
        if kinds != self._kinds:
            layout = lay_out(self._pieces_of(taken))
            if layout.end > room:
                return False
            self._layout, self._kinds, self._views = layout, kinds, {}
        return self._layout.end + len(taken.rest) <= room

    def _pieces_of(self, taken: Taken) -> tuple[Piece, ...]:
        buffers = (piece_of(name, buffer) for name, buffer in taken.buffers.items())
        states = (_piece_of_random(name, len(raw)) for name, raw in taken.random.items())
        return (*buffers, *states)

    def _buffers(self) -> dict[str, torch.Tensor]:
        """Return the buffers that there are at present: a module may make one later, or give one up."""
        found = ((name, mapping.get(key)) for name, mapping, key in self._buffer_places)
        return {name: buffer for name, buffer in found if buffer is not None}

    def _taken(self, texts: Iterable[str]) -> Taken:
        random, plain = self._random.take(), self._random.plain()
        if plain != self._plain[0]:
            self._plain = plain, json.dumps(plain, separators=_SEPARATORS)
        return Taken(self._buffers(), random, f'{{"values":{{{",".join(texts)}}},"random":{self._plain[1]}}}'.encode())


def _piece_of_random(name: str, length: int) -> Piece:
    return Piece(f"{RANDOM}{name}", "uint8", (length,), (0,), (length,), length)


def copy(to: list[torch.Tensor], of: list[torch.Tensor]) -> None:
    """Copy tensors into others, all of them at once and without the interpreter's lock."""
    if to:
        with torch.no_grad():
            torch._foreach_copy_(to, of)
