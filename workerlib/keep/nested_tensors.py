"""Tensors within the lists and dicts of an object's state: they are big state, and its values name them.

A tensor that is there twice is saved once, and comes back as one: else a change of it would leave the other one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from itertools import pairwise
from typing import Any

import torch

from workerlib.keep.kept_errors import KeptStateError
from workerlib.keep.pieces import is_sharded

NAMED = "$big"
"""The kind of a value that names a tensor, and the type of the device that it is on."""


class NestedTensors:
    """The tensors that were found within values."""

    def __init__(self, least_bytes: int, others: Mapping[Hashable, str] | None = None) -> None:
        """Begin with none. Only those with `least_bytes` are taken; `others` are named already, by `memory_of`."""
        self._least_bytes = least_bytes
        self._names = dict(others or {})
        self.tensors: dict[str, torch.Tensor] = {}
        self.seen: set[int] = set()
        """The identities of all tensors that there were, also of those that were not taken."""

    def take(self, tensor: torch.Tensor, path: str) -> dict[str, Any] | None:
        """Return the value that stands for a tensor; None if the tensor itself is to be written among values.

        Raises `KeptStateError` if another one has its name.
        """
        self.seen.add(id(tensor))
        if is_sharded(tensor) or tensor.numel() * tensor.element_size() < self._least_bytes:
            return None
        name = self._names.setdefault(memory_of(tensor), path)
        if name == path and self.tensors.setdefault(path, tensor) is not tensor:
            raise KeptStateError(f"two tensors have the name {path}, and only one of them could come back")
        return {NAMED: [name, tensor.device.type]}


def memory_of(tensor: torch.Tensor) -> Hashable:
    """Return what is equal for two tensors only if they have the same elements in the same memory."""
    if is_sharded(tensor) or tensor.layout is not torch.strided or not tensor.numel():
        return id(tensor)
    return tensor.data_ptr(), tensor.device, tensor.dtype, tuple(tensor.shape), tensor.stride()


def refuse_shared(tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Raise `KeptStateError` for two tensors that share a part of their memory: they would come back as two."""
    spans = sorted(
        (str(tensor.device), tensor.data_ptr(), tensor.data_ptr() + _reach(tensor), name)
        for name, tensor in tensors
        if not is_sharded(tensor) and tensor.layout is torch.strided and tensor.numel()
    )
    for (device, _, end, name), (other_device, begin, _, other) in pairwise(spans):
        if device == other_device and begin < end:
            raise KeptStateError(f"{name} and {other} overlap in memory, and would come back apart: keep a clone()")


def _reach(tensor: torch.Tensor) -> int:
    last = sum(stride * (size - 1) for stride, size in zip(tensor.stride(), tensor.shape, strict=True))
    return (last + 1) * tensor.element_size()
