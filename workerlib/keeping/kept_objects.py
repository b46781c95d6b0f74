"""The adapters for the objects that a script passes to `ctx.keep`, and `adapt`, which chooses them.

Tensors are saved by names, and restored into the objects of another process, perhaps at another world size. So a name
is the path to a parameter within the user's own module, whatever wraps that module. The state of an optimizer has the
names of its parameters, since their numbers depend on the order in which they were given.

All of this is read at the end of each step, so adapters compute again only what may have changed. The attributes by
which they describe their objects are those of `Adapter`.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, count, islice, repeat
from typing import Any

import torch

from workerlib.keeping.adapter import Adapter, BufferPlace
from workerlib.keeping.kept_containers import KeptContainer
from workerlib.keeping.kept_errors import KeptStateError, UnfitStateError
from workerlib.keeping.pieces import SavedTensors, is_sharded
from workerlib.keeping.plain_values import BYTES_MAX, NestedTensors, from_plain, memory_of, refuse_shared, to_plain

_WRAPPERS = {"DistributedDataParallel", "DataParallel"}
"""The classes of modules whose attribute `module` is the user's own module."""

_WRAPPED = {"_orig_mod", "_checkpoint_wrapped_module"}
"""The attributes in which torch.compile and activation checkpointing store the user's module."""

_NO_PARAMETER = ""
"""The name for optimizer state that belongs to no single parameter."""

_NO_MODULE = ""
"""The name for a parameter of no module, which no module has for one of its own."""

_Access = tuple[Callable[[], Any], Callable[[Any], Any]]
"""The functions that get and set the state of a random number generator."""


def adapt(objects: Mapping[str, Any]) -> dict[str, Adapter]:
    """Return the adapters of a script's objects, by name. Raises `KeptStateError`."""
    modules = {name: KeptModule(name, kept) for name, kept in objects.items() if isinstance(kept, torch.nn.Module)}
    # A metric of torchmetrics is a module, but its sums are no buffers: `KeptStateful` keeps it.
    modules = {name: module for name, module in modules.items() if not module.is_empty}
    parameters = {path: parameter for module in modules.values() for path, parameter in module.parameters}
    return {name: modules.get(name) or _adapt(name, kept, parameters) for name, kept in objects.items()}


def _adapt(name: str, kept: Any, parameters: Mapping[str, torch.nn.Parameter]) -> Adapter:
    """Return the adapter of an object that is no module; `parameters` are those of all modules, by name."""
    if isinstance(kept, torch.optim.Optimizer):
        return KeptOptimizer(name, kept, parameters)
    if callable(getattr(kept, "state_dict", None)) and callable(getattr(kept, "load_state_dict", None)):
        return KeptStateful(name, kept)
    if isinstance(kept, (torch.Tensor, dict, list)):
        return KeptContainer(name, kept)
    if (access := _access_to(kept)) is not None:
        return KeptGenerator(name, access)
    what, hint = f"a {type(kept).__name__}", ""
    if isinstance(kept, (int, float)):
        what, hint = repr(kept), f": put it into a dict, such as keep({name}={{{name!r}: {kept!r}}})"
    raise KeptStateError(
        f"{name} is {what}, which cannot be brought back in place{hint}; keep() takes modules, "
        "optimizers, objects with state_dict and load_state_dict, random number generators, tensors, and dicts and "
        "lists of tensors and numbers"
    )


class KeptModule(Adapter):
    """Adapts a module: its parameters are big state, and the buffers of its state dict are small state."""

    def __init__(self, name: str, module: torch.nn.Module) -> None:
        for submodule in module.modules():
            if type(submodule).__name__ == "FullyShardedDataParallel":
                raise KeptStateError(f"{name}: keep() knows fully_shard (FSDP2), not FullyShardedDataParallel")
            if callable(reshard := getattr(submodule, "reshard", None)):  # a module of fully_shard: its shards are kept
                reshard()
        self.module = module
        self._name = name
        self._with_extra = {
            _canonical(module, path): submodule
            for path, submodule in module.named_modules()
            if type(submodule).get_extra_state is not torch.nn.Module.get_extra_state
        }
        self._training = [(submodule, submodule.training) for submodule in module.modules()]
        self.parameters = [
            (f"{name}.{_canonical(module, path)}", parameter) for path, parameter in module.named_parameters()
        ]
        self._learning = [(parameter, parameter.requires_grad) for _, parameter in self.parameters]
        self._contents = _contents(module)
        self._missing = [(mapping, key) for _, mapping, key in self.buffer_places() if mapping[key] is None]

    def big_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield its parameters. Raises `KeptStateError` if the module has other ones, or other buffers, than at `keep`.

        Sharded parameters are not compared, since `fully_shard` replaces them during a forward.
        """
        present = _contents(self.module)
        if len(present) != len(self._contents) or any(map(_is_other, present, self._contents)):
            text = "has other parameters or buffers than when keep() was called, so no step is kept"
            raise KeptStateError(f"{self._name} {text}: call keep() when it has all of them")
        yield from self.parameters

    @property
    def has_unequal_inputs(self) -> bool:  # type: ignore[override]  # no other adapter has it as a property
        """Whether it is trained within `DistributedDataParallel.join`."""
        return getattr(getattr(self.module, "_join_config", None), "enable", False)

    def buffer_places(self) -> Iterator[BufferPlace]:
        """Yield the places of the buffers of its state dict, also of those that are None at present."""
        for prefix, submodule in self.module.named_modules():
            for key in _buffer_keys(submodule):
                path = _canonical(self.module, f"{prefix}.{key}" if prefix else key)
                yield f"{self._name}.{path}", submodule._buffers, key  # noqa: SLF001 - finds a replaced buffer too

    def values(self) -> Any:
        """Return its extra state as JSON; None if it has none."""
        extra = {
            path: to_plain(submodule.get_extra_state(), f"{self._name}.{path}")
            for path, submodule in self._with_extra.items()
        }
        return extra or None

    @property
    def is_empty(self) -> bool:
        """Whether it has no parameter, no buffer of the state dict and no extra state."""
        return not (self._with_extra or self._contents)

    def load_values(self, values: Any) -> None:
        """Load the extra state. Raises `UnfitStateError` unless the same submodules had one."""
        kept = values or {}
        if other := kept.keys() ^ self._with_extra.keys():
            raise UnfitStateError(f"the extra state of {self._name}.{min(other)} was not kept, or no module has it")
        for path, submodule in self._with_extra.items():
            submodule.set_extra_state(from_plain(kept[path]))

    def discard_step(self) -> None:
        """Drop the gradients, and the buffers made since `keep`; set `training` and `requires_grad` as at `keep`."""
        for parameter, learns in self._learning:
            parameter.grad = None
            parameter.requires_grad_(learns)
        for module, training in self._training:
            module.training = training
        for buffers, key in self._missing:
            buffers[key] = None


def _contents(module: torch.nn.Module) -> list[tuple[str, Any]]:
    """Return the keys and parameters of a module, and the keys of the buffers in its state dict.

    These keys come with None: a script may replace buffers.
    """
    contents: list[tuple[str, Any]] = []
    for each in module.modules():
        contents += each._parameters.items()  # noqa: SLF001 - no public method lists one module's own, with None
        contents += dict.fromkeys(_buffer_keys(each)).items()
    return contents


def _is_other(present: tuple[str, Any], before: tuple[str, Any]) -> bool:
    """Whether a key or its parameter is another one; sharded ones are not compared, see `KeptModule.big_tensors`."""
    return present[0] != before[0] or (present[1] is not before[1] and not is_sharded(before[1]))


def _buffer_keys(module: torch.nn.Module) -> list[str]:
    """Return the keys of the buffers that a module itself has in its state dict."""
    return [key for key in module._buffers if key not in module._non_persistent_buffers_set]  # noqa: SLF001 - as above


class KeptOptimizer(Adapter):
    """Adapts an optimizer: the tensors of its state are big state; learning rates and the like are values.

    Most state is a dict for each parameter, whose entries have a key and a tensor. Two kinds of entries are *value
    entries*, which are saved in the values:

    * Those that are no tensor, such as a list of earlier gradients. Tensors within a list are big state all the same,
      and the values name them.
    * Those whose tensor another entry has too. The values only name that tensor, so that it is saved once.
    """

    def __init__(self, name: str, optimizer: torch.optim.Optimizer, model: Mapping[str, torch.nn.Parameter]) -> None:
        if type(optimizer).__name__ == "ZeroRedundancyOptimizer":
            remedy = "keep the plain optimizer of torch.optim instead, or shard the model too, with fully_shard (FSDP2)"
            raise KeptStateError(f"{name}: keep() does not take a ZeroRedundancyOptimizer: {remedy}")
        self.optimizer = optimizer
        self._name = name
        self._prefix = f"{name}.state/"
        """Begins the names of the state's tensors, except for those within value entries: the values name these."""
        self._entries: tuple[list[Any], ...] = ([], [], [])
        """The parameters, the keys, and which keys have tensors, when `_update_entries` last compared them."""
        self._value_entries: list[tuple[str, str]] = []
        """The parameter and key of each value entry."""
        self._nested_tensors: dict[str, torch.Tensor] = {}
        """The tensors within value entries by name, as of the last call of `values`."""
        self._targets: dict[str, torch.Tensor] = {}
        """The tensors to fill, by name."""
        self._new_state: dict[str, dict[str, Any]] = {}
        """The state to load, by the parameter's name and the key."""
        self._model = model
        """The parameters of all modules, by name."""
        self._options = _GroupOptions(name, optimizer, {id(parameter): path for path, parameter in model.items()})
        self._parameters: dict[str, Any] = {}
        """The parameters of this optimizer, by name."""
        self._name_parameters()

    def big_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield its big tensors by name. A save calls `values` first, to find value entries and their tensors."""
        values = set(self._value_entries)
        for name, parameter in self._parameters.items():
            for key, value in self._state_of(parameter).items():
                if isinstance(value, torch.Tensor) and (name, key) not in values:
                    yield f"{self._prefix}{name}/{key}", value
        yield from self._nested_tensors.items()

    def values(self) -> Any:
        """Return its options and other values as JSON."""
        return self._options.values(self._state_values())

    def make_missing(self, values: Any, saved: SavedTensors, device: torch.device) -> None:
        """Add the parameter groups that the script adds only during training, and make the state to load."""
        groups, added = values["groups"], values.get("added", [])
        missing = len(groups) - len(self.optimizer.param_groups)
        # If groups are missing for another reason, `load_values` rejects their number.
        if 0 < missing <= len(added) and all(name in self._model for names in added for name in names):
            # Groups are only added at the end, so the last ones are missing.
            for names, options in zip(added[-missing:], groups[-missing:], strict=True):
                self.optimizer.add_param_group(from_plain(options) | {"params": [self._model[name] for name in names]})
            self._name_parameters()
        self._targets, self._new_state = {}, {}
        for path in saved.names:
            if path.startswith(self._prefix):
                name, _, key = path.removeprefix(self._prefix).rpartition("/")
                if name not in self._parameters:
                    raise UnfitStateError(f"{self._name} has no parameter {name}, whose state was kept")
                new = _new_tensor(self._parameters[name], path, saved)
                self._targets[path] = self._new_state.setdefault(name, {})[key] = new
        for name, entries in values["state"].items():
            find = partial(
                self._tensor_named, saved, device if name == _NO_PARAMETER else self._parameters[name].device
            )
            self._new_state.setdefault(name, {}).update(from_plain(entries, find))

    def _tensor_named(self, saved: SavedTensors, device: torch.device, path: str, kind: str) -> torch.Tensor:
        """Return the tensor that values call `path`: a parameter, or a new one to fill, on a device of type `kind`."""
        if path in self._parameters:
            parameter: torch.Tensor = self._parameters[path]
            return parameter.detach()
        if path not in self._targets:
            self._targets[path] = saved.new(path, device if device.type == kind else kind)
        return self._targets[path]

    def targets(self) -> Mapping[str, torch.Tensor]:
        """Return the tensors that `make_missing` has made."""
        return self._targets

    def load_values(self, values: Any) -> None:
        """Load the options and the state, once the targets are filled."""
        # `load_state_dict` knows parameters by number, in the order of the groups, which `_parameters` has too.
        places = {name: at for at, name in enumerate(self._parameters)}
        if len(values["groups"]) != len(self.optimizer.param_groups):
            raise UnfitStateError(f"{self._name} has a different number of parameter groups than was kept")
        numbers = count()
        groups = [
            {**from_plain(kept), "params": [*islice(numbers, len(group["params"]))]}
            for group, kept in zip(self.optimizer.param_groups, values["groups"], strict=True)
        ]
        global_state = self._new_state.pop(_NO_PARAMETER, {})
        state: dict[Any, Any] = {places[name]: dict(entries) for name, entries in self._new_state.items()}
        options = [set(group) for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict({"state": state | global_state, "param_groups": groups})
        # torch has filled in the options that are new in its later releases. If others are missing, an optimizer of
        # another class was kept.
        for wanted, group in zip(options, self.optimizer.param_groups, strict=True):
            if lacking := ", ".join(sorted(wanted - group.keys())):
                raise UnfitStateError(f"{self._name} was kept without {lacking}, as an optimizer of another class")
        # load_state_dict casts to the type of the parameter, also within lists. The state may have another type.
        for name, entries in self._new_state.items():
            present = self._state_of(self._parameters[name])
            for key, value in entries.items():
                if not isinstance(value, torch.Tensor):
                    present[key] = value
                elif present[key].dtype != value.dtype:
                    present[key] = value.to(present[key].device)
        self._targets, self._new_state = {}, {}

    def discard_step(self) -> None:
        """Drop the gradients, and the groups and options that the script has added."""
        # torch's `zero_grad` needs its `__init__`, which optimizers around others do not call.
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
        self._options.discard_added()

    def _name_parameters(self) -> None:
        """Name all parameters: a script may have added a group of them."""
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        names = self._options.names
        named = ((names.get(id(parameter), f"#{at}"), parameter) for at, parameter in enumerate(parameters))
        self._parameters = dict(named)

    def _state_of(self, parameter: torch.Tensor) -> dict[str, Any]:
        # `state` is a defaultdict. A read must add no entry, since optimizers initialise the state if it is empty.
        found: dict[str, Any] = self.optimizer.state.get(parameter, {})
        return found

    def _state_values(self) -> dict[str, Any]:
        """Return the state as JSON, except the big tensors, by the parameter's name and the key."""
        has_other_entries = self._update_entries()
        present = [(name, key, self._state_of(self._parameters[name])[key]) for name, key in self._value_entries]
        # A list or dict may have tensors within, and one of them may be a tensor of the state that has a name already.
        is_deep = not all(_is_immutable(value) for _, _, value in present)
        nested = NestedTensors(least_bytes=0, others=self._name_tensors()[0] if is_deep else None)
        found: dict[str, Any] = {}
        for name, key, value in present:
            found.setdefault(name, {})[key] = to_plain(value, f"{self._name}.within/{name}/{key}", nested)
        state: Mapping[Any, Any] = self.optimizer.state
        global_state = {key: value for key, value in state.items() if not isinstance(key, torch.Tensor)}
        if global_state:
            found[_NO_PARAMETER] = to_plain(global_state, f"{self._name}.within", nested)
        has_other_tensors = len(nested.tensors) != len(self._nested_tensors)
        self._nested_tensors = nested.tensors
        if has_other_entries or has_other_tensors:
            self.size_changes += 1
            refuse_shared(self.big_tensors())
        return found

    def _update_entries(self) -> bool:
        """Name the parameters and find the value entries again if any may have changed; return whether that was so.

        A search at each step would take too long, as it asks each tensor for its memory. So only the parameters, the
        keys, and which of these have tensors, are compared with those of the last call.
        """
        state: Mapping[Any, Any] = self.optimizer.state
        owners = [*chain.from_iterable(group["params"] for group in self.optimizer.param_groups), *state]
        dicts = [entries for entries in state.values() if isinstance(entries, dict)]
        keys = [*map(len, dicts), *chain.from_iterable(dicts)]
        are_tensors = [*map(isinstance, chain.from_iterable(map(dict.values, dicts)), repeat(torch.Tensor))]
        before, self._entries = self._entries, (owners, keys, are_tensors)
        if _are_same(owners, before[0]) and before[1:] == (keys, are_tensors):
            return False
        self._name_parameters()
        self._value_entries = self._name_tensors()[1]
        return True

    def _name_tensors(self) -> tuple[dict[Hashable, str], list[tuple[str, str]]]:
        """Return the names of its state's tensors by their memory, and its value entries.

        The names have the parameters too, since a parameter's state may contain the parameter.
        """
        names = {memory_of(parameter): name for name, parameter in self._parameters.items()}
        value_entries = []
        for name, parameter in self._parameters.items():
            for key, value in self._state_of(parameter).items():
                path = f"{self._prefix}{name}/{key}"
                if not isinstance(value, torch.Tensor) or names.setdefault(memory_of(value), path) != path:
                    value_entries.append((name, key))
        return names, value_entries


class _GroupOptions:
    """Writes the options of an optimizer's parameter groups as JSON, anew only when one may have changed."""

    def __init__(self, name: str, optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> None:
        """Begin with the optimizer as of `keep`."""
        self._name = name
        self._optimizer = optimizer
        self.names = names
        """The names of parameters of the model, by their ids."""
        self._first_keys = [set(group) for group in optimizer.param_groups]
        """The keys of each group that there was at `keep`."""
        self._last_read: list[Any] = []
        """The keys and options of all groups when they were last read."""
        self._are_immutable = False
        """Whether each of these options is unchanged as long as it is the same object."""
        self._values: Any = None

    def values(self, state: Mapping[str, Any]) -> Any:
        """Return the options together with `state`, the optimizer's other values."""
        groups = self._optimizer.param_groups
        present = [each for group in groups for pair in group.items() for each in pair]
        is_same = self._are_immutable and _are_same(present, self._last_read)
        # The same object as last time means that nothing has changed (`Adapter.values`). State may have changed in any
        # way, so there is a new object if there is state now, or was at the last call.
        if state or not is_same or self._values["state"]:
            options = [{key: value for key, value in group.items() if key != "params"} for group in groups]
            self._last_read = present
            self._are_immutable = all(_is_immutable(value) for group in options for value in group.values())
            plain = [{key: to_plain(value, f"{self._name}.{key}") for key, value in group.items()} for group in options]
            self._values = {"groups": plain, "state": state}
            if added := groups[len(self._first_keys) :]:
                # With a parameter of no module, `KeptOptimizer.make_missing` adds no groups, and the state is refused.
                self._values["added"] = [
                    [self.names.get(id(parameter), _NO_MODULE) for parameter in group["params"]] for group in added
                ]
        return self._values

    def discard_added(self) -> None:
        """Remove the groups and options added since `keep`; the next `keep` adds those of the step that it restores."""
        groups = self._optimizer.param_groups
        del groups[len(self._first_keys) :]
        for group, keys in zip(groups, self._first_keys, strict=False):  # a script may have removed groups
            for key in group.keys() - keys:
                del group[key]


class KeptStateful(Adapter):
    """Adapts anything with `state_dict` and `load_state_dict`: a scheduler, a sampler, a gradient scaler, a metric."""

    differs_by_rank = True

    def __init__(self, name: str, stateful: Any) -> None:
        self._name = name
        self._stateful = stateful
        # A scheduler steps after the optimizer. Anything else may change at any time.
        self.changes_late = isinstance(stateful, torch.optim.lr_scheduler.LRScheduler)
        # state_dict() of torchdata's StatefulDataLoader begins an iteration, with the samples from before `set_epoch`.
        self.iterates_when_read = isinstance(stateful, Iterable)
        self._nested: dict[str, torch.Tensor] = {}
        """Its large tensors, when its values were last read."""
        self.seen: set[Hashable] = set()
        """All of its tensors at that time, for `UnkeptState`: by `memory_of`, since a state dict has new objects for
        the same memory."""
        self.is_empty = False
        """Whether its state dict was empty then. A disabled gradient scaler does not count as empty."""
        self._targets: dict[str, torch.Tensor] = {}

    def big_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield its big tensors by name: those that were too large for values when these were last read."""
        yield from self._nested.items()

    def values(self) -> Any:
        """Return its state dict as JSON, with large tensors by name."""
        try:
            state = self._stateful.state_dict()
        except Exception as error:
            raise KeptStateError(f"{self._name} cannot be kept: its state_dict() has failed: {error!r}") from error
        nested = NestedTensors(least_bytes=BYTES_MAX + 1)
        values = to_plain(state, self._name, nested)
        self.size_changes += len(nested.tensors) != len(self._nested)
        self._nested, self.seen = nested.tensors, nested.seen
        self.is_empty = not state and not isinstance(self._stateful, torch.amp.GradScaler)
        return values

    def make_missing(self, values: Any, saved: SavedTensors, device: torch.device) -> None:
        """Make the large tensors that the values name."""
        self._targets = {}

        def make(path: str, kind: str) -> torch.Tensor:
            return self._targets.setdefault(path, saved.new(path, device if device.type == kind else kind))

        from_plain(values, make)

    def targets(self) -> Mapping[str, torch.Tensor]:
        """Return the tensors that `make_missing` has made."""
        return self._targets

    def load_values(self, values: Any) -> None:
        """Load the state dict, once the targets are filled."""
        targets, self._targets = self._targets, {}
        self._stateful.load_state_dict(from_plain(values, lambda path, _: targets[path]))


class KeptGenerator(Adapter):
    """Adapts a random number generator of torch, numpy or Python."""

    changes_late = False

    def __init__(self, name: str, access: _Access) -> None:
        self._name = name
        self._get_state, self._set_state = access

    def values(self) -> Any:
        """Return its state as JSON. Raises `KeptStateError` for the system's generator, which has none."""
        try:
            return to_plain(self._get_state(), self._name)
        except NotImplementedError as error:
            raise KeptStateError(f"{self._name} draws from the system, and has no state: {error}") from None

    def load_values(self, values: Any) -> None:
        """Set the state of the generator."""
        self._set_state(from_plain(values))


def _access_to(kept: Any) -> _Access | None:
    """Return the functions that get and set the state of a random number generator; None for anything else."""
    if isinstance(kept, torch.Generator):
        return kept.get_state, kept.set_state
    if isinstance(kept, random.Random):
        return kept.getstate, kept.setstate
    match type(kept).__module__, type(kept).__name__:  # numpy may not be installed
        case "numpy.random.mtrand", "RandomState":
            return partial(kept.get_state, legacy=False), kept.set_state
        case "numpy.random._generator", "Generator":
            return partial(getattr, kept.bit_generator, "state"), partial(setattr, kept.bit_generator, "state")
    return None


def _canonical(root: torch.nn.Module, path: str) -> str:
    """Return the path of a parameter or submodule without the names of wrappers: it is the same with and without DDP.

    The path of `root` itself is empty.
    """
    words, module = [], root
    for word in path.split(".") if path else ():
        if word not in _WRAPPED and not (word == "module" and type(module).__name__ in _WRAPPERS):
            words.append(word)
        module = getattr(module, word)
    return ".".join(words)


def _are_same(some: list[Any], others: list[Any]) -> bool:
    """Whether two lists have the same objects."""
    return len(some) == len(others) and all(map(operator.is_, some, others))


def _is_immutable(value: Any) -> bool:
    """Whether a value is of a type that Python never changes in place."""
    return type(value) in (int, float, bool, str, type(None)) or (
        type(value) is tuple and all(map(_is_immutable, value))
    )


def _new_tensor(parameter: Any, path: str, saved: SavedTensors) -> torch.Tensor:
    """Return a tensor for an optimizer's state of a parameter, sharded like the parameter if it has the same size.

    One of another size is on the CPU: `load_state_dict` moves it to the parameter's device, except for a `step` that
    the optimizer reads on the CPU.
    """
    if saved.shape(path) != tuple(parameter.shape):
        return saved.new(path, "cpu")
    if is_sharded(parameter):
        return torch.empty_like(parameter, dtype=saved.dtype(path), requires_grad=False)
    return saved.new(path, parameter.device)
