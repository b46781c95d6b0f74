"""Finds the optimizers that change kept parameters and were not given to `ctx.keep`: their state dies with the worker.

An optimizer may also be within another one, as in minimisers of sharpness, or within an object of the script's own. It
counts as kept if all of its state is that of an object that was given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from weakref import WeakSet

import torch

from workerlib.keep.adapter import KeptObject
from workerlib.keep.kept_errors import KeptStateError
from workerlib.keep.kept_objects import KeptOptimizer, KeptStateful


class UnkeptOptimizers:
    """Looks at each optimizer once, after the first step that it has done."""

    def __init__(self, objects: Mapping[str, KeptObject]) -> None:
        """Take the adapters of the objects that were given."""
        self._objects = objects
        self._seen = WeakSet(kept.optimizer for kept in objects.values() if isinstance(kept, KeptOptimizer))
        self._new: list[torch.optim.Optimizer] = []
        self._named: set[str] = set()

    def note(self, optimizer: torch.optim.Optimizer) -> None:
        """Note that an optimizer does its step."""
        if optimizer not in self._seen:
            self._seen.add(optimizer)
            self._new.append(optimizer)

    def look(self) -> Iterator[str]:
        """Yield what is not kept of the optimizers that have done their first step, once for each class."""
        new, self._new = self._new, []
        for optimizer in new:
            name = type(optimizer).__name__
            if name not in self._named and not self._is_kept(optimizer):
                self._named.add(name)
                yield f"the state of {name}, an optimizer that changes kept parameters and was not given to ctx.keep"

    def _is_kept(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether an optimizer changes nothing that is kept, or has no state but that of objects that were given."""
        given = [kept.optimizer for kept in self._objects.values() if isinstance(kept, KeptOptimizer)]
        groups = {id(group) for each in given for group in each.param_groups}
        try:
            tensors = {id(tensor) for kept in self._objects.values() for _, tensor in kept.big()}
            tensors.update(*(kept.tensor_ids for kept in self._objects.values() if isinstance(kept, KeptStateful)))
            state = {id(tensor) for _, tensor in KeptOptimizer("", optimizer, {}).big()}
        except KeptStateError:  # no step is kept then, and the user is told why
            return True
        shares_groups = all(id(group) in groups for group in optimizer.param_groups)
        changes = any(id(parameter) in tensors for group in optimizer.param_groups for parameter in group["params"])
        return not changes or (state <= tensors and (shares_groups or bool(state)))
