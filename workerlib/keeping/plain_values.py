"""Turns the state of schedulers, samplers and the like into JSON and back, exactly and without pickle.

JSON has no tuples, no keys that are numbers, no bytes and no tensors. Each of them becomes an object whose one key
names its kind, such as `{"$tuple": [1, 2]}`. A tensor comes back on its type of device, and requires no gradient; a
number of numpy comes back as one of Python. Anything else is refused, with the path to it. `NestedTensors` takes
tensors out, so that they are saved as big state.
"""

from __future__ import annotations

import base64
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from itertools import pairwise
from typing import Any

import torch

from workerlib.keeping.kept_errors import KeptStateError
from workerlib.keeping.pieces import bytes_obstacle, is_sharded

NAMED = "$big"
"""The kind of a value that stands for a tensor: it has the tensor's name, and the type of its device."""


class NestedTensors:
    """Collects the tensors within the lists and dicts of an object's state: its values only name them.

    A tensor that occurs twice is saved once, and is restored as one, so that a change of it shows in both places.
    """

    def __init__(self, least_bytes: int, others: Mapping[Hashable, str] | None = None) -> None:
        """Collect tensors of at least `least_bytes`; `others` names those saved elsewhere, by `memory_of`."""
        self._least_bytes = least_bytes
        self._names = dict(others or {})
        self.tensors: dict[str, torch.Tensor] = {}
        self.seen: set[Hashable] = set()
        """All tensors that were given to `collect`, by `memory_of`."""

    def collect(self, tensor: torch.Tensor, path: str) -> dict[str, Any] | None:
        """Return the value that stands for a tensor; None for a small one, which belongs among the values itself.

        None for a DTensor too, which `to_plain` refuses. Raises `KeptStateError` if another tensor has its name.
        """
        memory = memory_of(tensor)
        self.seen.add(memory)
        if is_sharded(tensor) or tensor.numel() * tensor.element_size() < self._least_bytes:
            return None
        name = self._names.setdefault(memory, path)
        if name == path and self.tensors.setdefault(path, tensor) is not tensor:
            raise KeptStateError(f"two tensors have the name {path}, and only one of them could come back")
        return {NAMED: [name, tensor.device.type]}


def memory_of(tensor: torch.Tensor) -> Hashable:
    """Return a key that two tensors share only if they have the same elements in the same memory."""
    if is_sharded(tensor) or tensor.layout is not torch.strided or not tensor.numel():
        return id(tensor)
    return tensor.data_ptr(), tensor.device, tensor.dtype, tuple(tensor.shape), tensor.stride()


def refuse_shared(tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Raise `KeptStateError` if two tensors share a part of their memory, which they would not share when restored."""
    spans = sorted(
        (str(tensor.device), tensor.data_ptr(), tensor.data_ptr() + _reach(tensor), name)
        for name, tensor in tensors
        if not is_sharded(tensor) and tensor.layout is torch.strided and tensor.numel()
    )
    for (device, _, end, name), (other_device, begin, _, other) in pairwise(spans):
        if device == other_device and begin < end:
            raise KeptStateError(f"{name} and {other} overlap in memory, and would come back apart: keep a clone()")


def _reach(tensor: torch.Tensor) -> int:
    """Return the bytes from the beginning of a tensor to its end, with gaps."""
    last = sum(stride * (size - 1) for stride, size in zip(tensor.stride(), tensor.shape, strict=True))
    return (last + 1) * tensor.element_size()


BYTES_MAX = 1 << 20
"""The most bytes of a tensor or of bytes among values, since these are written as text at each step."""

NESTING_MAX = 100
"""The most dicts and lists within one another, far below what Python's stack allows."""

INT_BITS_MAX = 2_048
"""The most bits of an integer: Python limits how many digits a number may have as text, to 640 at least."""

_SEQUENCES: dict[str, Any] = {
    "$tuple": tuple,
    "$set": set,
    "$frozenset": frozenset,
    "$deque": deque,
    "$size": torch.Size,
}

_MAPPINGS: dict[str, Any] = {"$dict": dict, "$ordered": OrderedDict, "$counter": Counter}

_KIND_OF = {kind: name for name, kind in (*_SEQUENCES.items(), *_MAPPINGS.items())}


def to_plain(value: Any, path: str, nested: NestedTensors | None = None, depth: int = 0) -> Any:  # noqa: C901, PLR0911 - one for each kind
    """Return a value as plain JSON. Raises `KeptStateError`, which names the path to a value that has no JSON form.

    Tensors that `nested` collects are only named. `depth` is how many dicts and lists the value is within.
    """
    kind = type(value)
    if kind is int and value.bit_length() > INT_BITS_MAX:
        raise KeptStateError(f"{path} is an integer of {value.bit_length()} bits, and at most {INT_BITS_MAX} are kept")
    if value is None or kind in (str, int, float, bool):
        return value
    if depth > NESTING_MAX:
        raise too_deep(path)
    within = depth + 1
    if kind is list:
        return [to_plain(item, f"{path}[{number}]", nested, within) for number, item in enumerate(value)]
    if kind is dict and all(type(key) is str and not key.startswith("$") for key in value):
        return {key: to_plain(item, f"{path}.{key}", nested, within) for key, item in value.items()}
    name = _KIND_OF.get(kind)
    if kind is deque and value.maxlen is not None:
        return {"$bounded": [value.maxlen, to_plain([*value], path, nested, within)]}
    if name in _SEQUENCES:
        return {name: [to_plain(item, f"{path}[{number}]", nested, within) for number, item in enumerate(value)]}
    if name in _MAPPINGS:
        return {
            name: [
                [to_plain(key, f"{path} key", None, within), to_plain(item, f"{path}[{key!r}]", nested, within)]
                for key, item in value.items()
            ]
        }
    if kind is complex:
        return {"$complex": [value.real, value.imag]}
    if kind in (bytes, bytearray):
        return {f"${kind.__name__}": _text(bytes(value), path)}
    if isinstance(value, torch.Tensor):
        named = None if nested is None else nested.collect(value, path)
        return named or {"$tensor": _tensor(value, path)}
    if isinstance(value, (torch.dtype, torch.device)):
        return {f"${type(value).__name__}": str(value).removeprefix("torch.")}
    return _of_numpy(value, path)


def too_deep(path: str) -> KeptStateError:
    """Return the error for a value at a path that is within too many dicts and lists."""
    return KeptStateError(
        f"{path[:60]}... is within more than {NESTING_MAX} dicts and lists, or holds itself, so it cannot be kept"
    )


def from_plain(plain: Any, find: Callable[[str, str], torch.Tensor] | None = None) -> Any:  # noqa: C901, PLR0911 - as above
    """Return the value that `to_plain` was given. Raises `KeptStateError`.

    `find` takes the name and the type of device of a tensor that is only named, and returns the tensor.
    """
    if isinstance(plain, list):
        return [from_plain(item, find) for item in plain]
    if not isinstance(plain, dict):
        return plain
    name, content = next(iter(plain.items()), ("", None))
    if content is None or not name.startswith("$"):
        return {key: from_plain(item, find) for key, item in plain.items()}
    if name in _SEQUENCES:
        return _SEQUENCES[name](from_plain(content, find))
    if name in _MAPPINGS:
        return _MAPPINGS[name]({from_plain(key): from_plain(item, find) for key, item in content})
    match name:
        case "$bounded":
            return deque(from_plain(content[1], find), content[0])
        case _ if name == NAMED and find is not None:
            return find(*content)
        case "$complex":
            return complex(*content)
        case "$bytes" | "$bytearray":
            return (bytes if name == "$bytes" else bytearray)(base64.b64decode(content))
        case "$tensor" | "$array":
            name_of_type, sizes, text, *devices = content  # the type of a device follows if it is not the CPU
            raw, dtype = bytearray(base64.b64decode(text)), _dtype(name_of_type)
            tensor = torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0)
            tensor = tensor.to(devices[0] if devices else "cpu", dtype).reshape(sizes)
            return tensor.numpy() if name == "$array" else tensor
        case "$dtype":
            return _dtype(content)
        case "$device":
            return torch.device(content)
    raise KeptStateError(f"kept values of the kind {name[:40]!r} are not known here")


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise KeptStateError(f"{str(name)[:40]!r} is no type of a tensor's elements")
    return dtype


def _of_numpy(value: Any, path: str) -> Any:
    if type(value).__module__ == "numpy":
        # A number of numpy: unlike it, an array of the shape () has `__len__`.
        if hasattr(value, "dtype") and hasattr(value, "shape") and value.shape == () and not hasattr(value, "__len__"):
            item = value.item()
            if type(item).__module__ != "numpy":  # numpy's `longdouble` has no form in Python
                return to_plain(item, path)
        if type(value).__name__ == "ndarray":
            try:
                return {"$array": _tensor(torch.from_numpy(value.copy()), path)}
            except TypeError as error:
                raise KeptStateError(f"{path}: {error}") from None
    raise KeptStateError(
        f"{path} is a {type(value).__module__}.{type(value).__qualname__}, which cannot be kept: keep numbers, texts, "
        "tensors, and lists, tuples and dicts of them"
    )


def _tensor(tensor: torch.Tensor, path: str) -> list[Any]:
    if is_sharded(tensor):
        raise KeptStateError(f"{path} is a DTensor: give the module, the optimizer or the tensor itself to keep()")
    if (why := bytes_obstacle(tensor)) is not None:
        raise KeptStateError(f"{path} {why}")
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    text = _text(bytes(flat.view(torch.uint8).numpy()) if flat.numel() else b"", path)
    devices = [] if tensor.device.type == "cpu" else [tensor.device.type]
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), text, *devices]


def _text(raw: bytes, path: str) -> str:
    if len(raw) > BYTES_MAX:
        raise KeptStateError(
            f"{path} has {len(raw):,} bytes, and would be written at each step: give the module, the optimizer or the "
            "tensor itself to keep()"
        )
    return base64.b64encode(raw).decode()
