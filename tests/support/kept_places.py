"""Places of kept state as a worker writes them, in plain memory of the test."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from nodeclient.keeping.parts.arenas import Held
from nodeclient.keeping.parts.part_messages import Kind
from workerlib.contract.arena import ALIGNMENT, CONTROL_WORDS, WITH_SMALL, Commit, Place
from workerlib.contract.manifest import Piece, lay_out

Parts = Mapping[str, tuple[torch.Tensor, tuple[int, ...], tuple[int, ...]]]
"""What a rank has of each tensor, the size of the whole, and where in it the piece begins."""


def empty_place(length: int) -> Place:
    """Return a place with room for so many bytes."""
    return Place(memoryview(bytearray(CONTROL_WORDS * 8)).cast("Q"), memoryview(bytearray(length)))


def whole(tensors: Mapping[str, torch.Tensor]) -> Parts:
    """Return tensors of which a rank has all."""
    return {name: (tensor, tuple(tensor.shape), (0,) * tensor.dim()) for name, tensor in tensors.items()}


def sharded(tensors: Mapping[str, torch.Tensor], shard: int, shards: int) -> Parts:
    """Return the pieces that FSDP gives a rank: rows, the last ranks perhaps fewer or none."""
    found = {}
    for name, tensor in tensors.items():
        rows = -(-len(tensor) // shards)
        begin = min(shard * rows, len(tensor))
        found[name] = tensor[begin : begin + rows], tuple(tensor.shape), (begin, *[0] * (tensor.dim() - 1))
    return found


def small_bytes(buffers: Mapping[str, torch.Tensor], values: Any) -> bytes:
    """Return a small state as a worker writes it."""
    data, end = _tensors(whole(buffers))
    return bytes(data[:end]) + json.dumps({"values": values, "random": {}}).encode()


def big_bytes(parts: Parts) -> bytes:
    """Return a big state as a worker writes it."""
    data, end = _tensors(parts)
    return data[:end]


def held(parts: Parts, commit: Commit, small: bytes | None = None) -> Held:
    """Return a generation with these tensors; the length and the flags of `commit` are filled in."""
    data, end = _tensors(parts)
    if small is not None:
        end = -(-end // ALIGNMENT) * ALIGNMENT
        data = data[:end].ljust(end, b"\0") + small
        end += len(small)
    place = empty_place(end)
    place.data[:] = data[:end]
    commit = replace(commit, length=end, serial=1, flags=0 if small is None else WITH_SMALL)
    place.commit(commit)
    return Held(-1, place, commit, Kind.BIG)


def _tensors(parts: Parts) -> tuple[bytes, int]:
    pieces = [
        Piece(
            name,
            str(tensor.dtype).removeprefix("torch."),
            size,
            offsets,
            tuple(tensor.shape),
            tensor.numel() * tensor.itemsize,
        )
        for name, (tensor, size, offsets) in parts.items()
    ]
    layout = lay_out(pieces)
    data = bytearray(layout.end)
    data[: len(layout.manifest)] = layout.manifest
    for begin, (tensor, _, _) in zip(layout.begins, parts.values(), strict=True):
        raw = bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy()) if tensor.numel() else b""
        data[begin : begin + len(raw)] = raw
    return bytes(data), layout.end
