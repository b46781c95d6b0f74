"""The small state of each step: what forward changes without the optimizer, so that it would be lost with a worker.

It is written to a ring of places. A rank that dies may have contributed to a step that the others complete without it,
so the small state is written within the step too, as *pending*: buffers and random state are those of the step then.
Values such as the number of a scheduler's step may still change. Of each object is learned whether its values do: from
a step in which they were the same within the step and at its end, and not those of the step before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from workerlib.keep.arena import Arena, Commit, Place
from workerlib.keep.kept_errors import KeptStateError
from workerlib.keep.kept_objects import KeptObject, Slot
from workerlib.keep.manifest import Layout, lay_out, read_layout
from workerlib.keep.pieces import piece_of, views_of
from workerlib.keep.random_state import RandomState

RANDOM = "random/"
"""The prefix of the names of random states among the tensors."""

_SEPARATORS = (",", ":")


@dataclass(frozen=True, slots=True)
class SmallState:
    """The small state that a place holds."""

    tensors: Mapping[str, torch.Tensor]
    values: Mapping[str, Any]
    random: Mapping[str, Any]
    """What of the random state is no tensor."""

    @property
    def buffers(self) -> dict[str, torch.Tensor]:
        """The tensors without the random state."""
        return {name: one for name, one in self.tensors.items() if not name.startswith(RANDOM)}

    @property
    def random_tensors(self) -> dict[str, torch.Tensor]:
        """The random states that are tensors."""
        return {name.removeprefix(RANDOM): one for name, one in self.tensors.items() if name.startswith(RANDOM)}


def read_small(data: memoryview) -> SmallState:
    """Return the small state in the data of a place. Raises `KeptStateError` and `ManifestError`."""
    layout = read_layout(data)
    tensors = dict(zip((one.name for one in layout.pieces), views_of(layout, data), strict=True))
    try:
        rest = json.loads(bytes(data[layout.end :]))
        return SmallState(tensors, dict(rest["values"]), dict(rest["random"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise KeptStateError(f"kept values cannot be read: {error}") from None


@dataclass(slots=True)
class _Habit:
    """What is known of an object's values."""

    known_late: bool
    settled: bool = False
    pending: str = ""
    """Its values within the present step."""
    done: str = ""
    """Its values at the end of the last step."""

    def learn(self, present: str) -> None:
        """Compare the values at the end of a step with those of before."""
        if self.pending:
            self.known_late |= present != self.pending
            self.settled = not self.known_late and (self.settled or present != self.done)
        self.pending, self.done = "", present


class SmallStates:
    """Takes the small state of this process, and writes it into an arena once there is one."""

    def __init__(self, objects: Mapping[str, KeptObject]) -> None:
        self._objects = objects
        self._slots: list[Slot] = [slot for one in objects.values() for slot in one.buffers()]
        self._habits = {name: _Habit(one.late) for name, one in objects.items()}
        self._random = RandomState()
        self._arena: Arena | None = None
        self._serial = 0
        self._names: tuple[str, ...] = ()
        self._layout = Layout((), (), b"", 0)
        self._views: list[list[torch.Tensor]] = []
        self._headed: set[int] = set()
        """The places that have the manifest of the present layout."""

    def attach(self, arena: Arena) -> None:
        """Write into this arena from now on."""
        self._serial = arena.newest_serial()
        self._arena = arena
        self._names = ()

    def take(self) -> tuple[dict[str, torch.Tensor], bytes]:
        """Return the small state at the end of a step: tensors, which change with training, and values."""
        tensors = self._tensors()
        values = {name: one.values() for name, one in self._objects.items()}
        for name, value in values.items():
            self._habits[name].learn(json.dumps(value, separators=_SEPARATORS))
        return tensors, self._rest({name: value for name, value in values.items() if value is not None})

    def take_pending(self) -> tuple[dict[str, torch.Tensor], bytes]:
        """Return the small state within a step; of the values those which will not change any more."""
        tensors = self._tensors()
        values = {}
        for name, habit in self._habits.items():
            if not habit.known_late:
                value = self._objects[name].values()
                habit.pending = json.dumps(value, separators=_SEPARATORS)
                if habit.settled and value is not None:
                    values[name] = value
        return tensors, self._rest(values)

    def bytes_needed(self, tensors: Mapping[str, torch.Tensor], rest: bytes) -> int:
        """Return how many bytes a place needs for a small state, with room for values that become longer."""
        return lay_out(piece_of(*one) for one in tensors.items()).end + 2 * len(rest) + 4096

    def write(self, tensors: Mapping[str, torch.Tensor], rest: bytes, commit: Commit) -> bool:
        """Write a small state; the length and serial of `commit` are filled in. Return False if it does not fit."""
        if self._arena is None or not self._fits(self._arena.smalls, tensors, rest):
            return False
        place = self._arena.begin_small()
        if place is None:
            return False
        number = next(at for at, one in enumerate(self._arena.smalls) if one is place)
        layout = self._layout
        if number not in self._headed:
            place.data[: len(layout.manifest)] = layout.manifest
            self._headed.add(number)
        copy(self._views[number], [one.detach() for one in tensors.values()])
        end = layout.end + len(rest)
        place.data[layout.end : end] = rest
        self._serial += 1
        place.commit(replace(commit, length=end, serial=self._serial))
        return True

    def find(self, wanted: Commit) -> memoryview | None:
        """Return the data of the small state of a step that is done; None if it is not there."""
        for place in self._arena.smalls if self._arena is not None else ():
            commit = place.read()
            if commit is not None and not commit.pending and commit.is_same_part(wanted):
                return place.data[: commit.length]
        return None

    def _fits(self, places: Sequence[Place], tensors: Mapping[str, torch.Tensor], rest: bytes) -> bool:
        """Whether there is room; lays the places out if the tensors are others than before."""
        names = tuple(tensors)
        same = names == self._names and all(
            one.shape == view.shape and one.dtype == view.dtype
            for one, view in zip(tensors.values(), self._views[0], strict=True)
        )
        if not same:
            layout = lay_out(piece_of(*one) for one in tensors.items())
            if layout.end > len(places[0].data):
                return False
            self._layout, self._names = layout, names
            self._views = [views_of(layout, place.data) for place in places]
            self._headed = set()
        return self._layout.end + len(rest) <= len(places[0].data)

    def _tensors(self) -> dict[str, torch.Tensor]:
        tensors = {name: mapping[key] for name, mapping, key in self._slots}
        tensors |= {f"{RANDOM}{name}": one for name, one in self._random.tensors().items()}
        return tensors

    def _rest(self, values: Mapping[str, Any]) -> bytes:
        return json.dumps({"values": values, "random": self._random.plain()}, separators=_SEPARATORS).encode()


def copy(to: list[torch.Tensor], of: list[torch.Tensor]) -> None:
    """Copy tensors into others, all of them at once and without the interpreter's lock."""
    if to:
        with torch.no_grad():
            torch._foreach_copy_(to, of)
