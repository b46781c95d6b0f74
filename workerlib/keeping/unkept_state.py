"""Finds state that training needs and `ctx.keep` does not keep, so that the user is warned: it dies with the worker.

* The state of an optimizer that changes kept parameters and was not given to `ctx.keep`. Such an optimizer may be
  inside another one, as in SAM, or inside an object of the script. Its state counts as kept if a given object has all
  of it.
* The parameters of a given optimizer that no given object has, as where `torch.func.functional_call` is given tensors
  that the module does not have.
* A given object whose state dict is empty: torchmetrics leaves its sums out by default.
* The state of a DDP communication hook, such as the errors that PowerSGD corrects in the next step.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from weakref import WeakSet

import torch
from torch.distributed import ProcessGroup

from workerlib.keeping.adapter import Adapter
from workerlib.keeping.kept_errors import KeptStateError
from workerlib.keeping.kept_objects import KeptModule, KeptOptimizer, KeptStateful
from workerlib.keeping.plain_values import memory_of


class UnkeptState:
    """Checks each optimizer after its first step, and all objects after the first step of training."""

    def __init__(self, objects: Mapping[str, Adapter]) -> None:
        """Take the adapters of the given objects, by name."""
        self._objects = objects
        self._known = WeakSet(kept.optimizer for kept in objects.values() if isinstance(kept, KeptOptimizer))
        self._new: list[torch.optim.Optimizer] = []
        self._reported: set[str] = set()
        self._has_checked_objects = False

    def record(self, optimizer: torch.optim.Optimizer) -> None:
        """Record that an optimizer begins a step."""
        if optimizer not in self._known:
            self._known.add(optimizer)
            self._new.append(optimizer)

    def find(self) -> Iterator[str]:
        """Yield phrases that name unkept state, once for each object and class of optimizer. Call it after a step."""
        if not self._has_checked_objects:
            self._has_checked_objects = True
            yield from self._empty_objects()
            yield from self._parameters_elsewhere()
            yield from self._hook_states()
        new, self._new = self._new, []
        for optimizer in new:
            name = type(optimizer).__name__
            if name not in self._reported and not self._is_kept(optimizer):
                self._reported.add(name)
                yield f"the state of {name}, an optimizer that changes kept parameters and was not given to ctx.keep"

    def _empty_objects(self) -> Iterator[str]:
        for name, kept in self._objects.items():
            if isinstance(kept, KeptStateful) and kept.is_empty:
                yield f"{name}, whose state_dict is empty: if it has a state, give that to ctx.keep by itself"

    def _parameters_elsewhere(self) -> Iterator[str]:
        try:
            tensors = self._given_tensors()
        except KeptStateError:  # no step is kept then, and the user is told why
            return
        for name, kept in self._objects.items():
            if isinstance(kept, KeptOptimizer) and not tensors.issuperset(_parameters(kept.optimizer)):
                yield f"parameters of {name} that no object given to ctx.keep has: give it those too"

    def _given_tensors(self) -> set[Hashable]:
        """Return all tensors of the given objects, by `memory_of`. Raises `KeptStateError`."""
        tensors = (tensor for kept in self._objects.values() for _, tensor in kept.big_tensors())
        return self._in_state_dicts().union(map(memory_of, tensors))

    def _in_state_dicts(self) -> set[Hashable]:
        return {each for kept in self._objects.values() if isinstance(kept, KeptStateful) for each in kept.seen}

    def _hook_states(self) -> Iterator[str]:
        for name, kept in self._objects.items():
            module = kept.module if isinstance(kept, KeptModule) else None
            # torch has no public name for them. The state of a hook that needs none is a process group, or None.
            for _, state in getattr(module, "_comm_hooks", ()):
                if state is not None and not isinstance(state, ProcessGroup):
                    yield f"the {type(state).__name__} of a communication hook of {name}, which only its own rank has"

    def _is_kept(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the given objects have all state of an optimizer, or it changes none of their tensors."""
        given = [kept.optimizer for kept in self._objects.values() if isinstance(kept, KeptOptimizer)]
        groups = {id(group) for each in given for group in each.param_groups}
        try:
            tensors = self._given_tensors()
            state = {memory_of(tensor) for _, tensor in KeptOptimizer("", optimizer, {}).big_tensors()}
        except KeptStateError:  # no step is kept then, and the user is told why
            return True
        if tensors.isdisjoint(_parameters(optimizer)):
            return True
        if state:
            return state <= tensors
        # Plain SGD and the like have only options. A given optimizer with the same parameter groups has them, and an
        # object whose state dict has the parameters may have them.
        shares_groups = all(id(group) in groups for group in optimizer.param_groups)
        return shares_groups or not self._in_state_dicts().isdisjoint(_parameters(optimizer))


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[Hashable]:
    """Yield each parameter of an optimizer, by `memory_of`."""
    return (memory_of(parameter) for group in optimizer.param_groups for parameter in group["params"])
