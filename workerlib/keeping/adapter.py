"""What `ctx.keep` needs of an object: the adapters of all kinds of objects have the same methods.

* `big` returns its big tensors, which are saved when the round breaks or at an interval.
* `buffers` returns the places of its small tensors, which forward changes: they are saved at each step, for each rank.
* `values` returns its other state as JSON, saved at each step. It is the same object as before if nothing has changed.
* `make_missing` makes what the script had added when the state was kept, and has not added yet.
* `targets` returns the tensors to be filled with kept ones, and `take_values` then takes the kept values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, Protocol

import torch

from workerlib.keeping.pieces import SavedTensors

BufferPlace = tuple[str, MutableMapping[str, Any], str]
"""A name, and the mapping and the key under which the present tensor of that name is found; there may be none."""


class KeptObject(Protocol):
    """An adapter; the module's docstring says what its methods are for."""

    late: bool
    """Whether its values change only between `optimizer.step` and `ctx.step`, if at all."""

    iterates: bool
    """Whether reading its values may begin an iteration. If so, they are not read before the first step is done."""

    growth: int
    """A count of the calls of `values` at which there was more or less state than before."""

    def big(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield its big tensors by name."""

    def buffers(self) -> Iterator[BufferPlace]:
        """Yield the places of its small tensors."""

    def values(self) -> Any:
        """Return the rest of its state as JSON; None if it has none."""

    def make_missing(self, values: Any, saved: SavedTensors, device: torch.device) -> None:
        """Make what the script adds in the course of training. Raises `UnfitStateError` if that is not known."""

    def targets(self, saved: SavedTensors) -> Mapping[str, torch.Tensor]:
        """Return the tensors to be filled."""

    def take_values(self, values: Any) -> None:
        """Load the values, once the targets are filled."""

    def forget_step(self) -> None:
        """Drop what an interrupted step has left, so that the object is as if it was just made."""


class Adapter:
    """The defaults of adapters: no tensors, and values that change late."""

    late = True
    iterates = False
    growth = 0

    def big(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield its big tensors by name."""
        yield from ()

    def buffers(self) -> Iterator[BufferPlace]:
        """Yield the places of its small tensors."""
        yield from ()

    def make_missing(self, values: Any, saved: SavedTensors, device: torch.device) -> None:
        """Make what the script adds in the course of training."""

    def targets(self, saved: SavedTensors) -> Mapping[str, torch.Tensor]:
        """Return the tensors to be filled."""
        del saved
        return {}

    def forget_step(self) -> None:
        """Drop what an interrupted step has left."""
