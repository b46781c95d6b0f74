"""The base class of adapters: `ctx.keep` saves and restores every kind of object through the same methods.

An adapter divides the state of its object. *Big* tensors are parameters and what an optimizer keeps of them: they are
saved when the round breaks, or at an interval. *Small* state is saved at the end of each step, and within it as
*pending* (`small_state`): the buffers of modules, and *values*, which are the rest of its state as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import torch

from workerlib.keeping.pieces import SavedTensors

BufferPlace = tuple[str, MutableMapping[str, Any], str]
"""A buffer's name, and the mapping and the key that lead to its present tensor; the key may be missing there."""


class Adapter:
    """Reads and restores the state of one object. An object without tensors needs only `values` and `load_values`.

    A restore calls `make_missing` with the saved values, fills `targets`, and calls `load_values` with these values.
    Then `values` is called at the end of each step, and within it too unless the values change late; `discard_step` is
    called when this process leaves the round for the next one.
    """

    changes_late = True
    """Whether its values change only between `optimizer.step` and `ctx.step`, if at all. A pending state then goes
    without them, because they are still those of the last step."""

    iterates_when_read = False
    """Whether reading its values may begin an iteration, as with a data loader. If so, they are not read before the
    first step is done, since the script may set the epoch until then."""

    differs_by_rank = False
    """Whether its tensors, such as those of a metric, may differ between replicas. They are then not compared."""

    has_unequal_inputs = False
    """Whether ranks may do different numbers of steps. If so, replicas are not compared."""

    size_changes = 0
    """How many calls of `values` have returned more or less state than the one before. When this grows, the object may
    need more memory (`GenerationWriter.has_changed_size`)."""

    def big_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield its big tensors by name. Raises `KeptStateError` if the object has other tensors than at `keep`."""
        yield from ()

    def buffer_places(self) -> Iterator[BufferPlace]:
        """Yield the places of its small tensors, also of buffers that are None at present."""
        yield from ()

    def values(self) -> Any:
        """Return the rest of its state as JSON, None if it has none; the same object as before if nothing has changed.

        Raises `KeptStateError` for a value that cannot be kept.
        """
        raise NotImplementedError

    def make_missing(self, values: Any, saved: SavedTensors, device: torch.device) -> None:
        """Make the tensors and parameter groups that the script adds only during training, so that they can be filled.

        Raises `UnfitStateError` if it is not known how to make one.
        """

    def targets(self) -> Mapping[str, torch.Tensor]:
        """Return the tensors to fill, by the names under which they were saved."""
        return dict(self.big_tensors())

    def load_values(self, values: Any) -> None:
        """Load the values, once the targets are filled. Raises `UnfitStateError` if they do not fit."""
        raise NotImplementedError

    def discard_step(self) -> None:
        """Drop what an interrupted step has left, so that the object is as if it was just made."""
